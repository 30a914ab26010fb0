package e2e

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"

	berth "github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/testkit/wgtest"
)

// TestNetworkOfTwoMachines: pods of two machines reach each other by address,
// by Service and by name, policies hold between them, and leaving takes
// everything away. In mode vxlan they talk through the tunnel, in mode wireguard
// through a device in userspace, which need not be in the kernel then.
func TestNetworkOfTwoMachines(t *testing.T) {
	for _, mode := range []string{"auto", "vxlan", "wireguard"} {
		t.Run(mode, func(t *testing.T) {
			flags := []string{"--network", mode}
			six := mode != "auto"
			if six {
				// The machines have IPv4 only: IPv6 of pods must go through it.
				flags = append(flags, "--cluster-cidr", "10.224.0.0/16,fd00:10:224::/56", "--service-cidr",
					"10.225.0.0/16,fd00:10:225::/112")
			}
			r := newRoom(t, flags...)
			a, b := r.machine("a"), r.machine("b")
			if mode == "wireguard" {
				a.withoutWireGuard()
				a.giveWireGuard()
				b.giveWireGuard()
			}
			a.join()
			b.join()
			r.apply(strings.Replace(spread, `args: [serve, "8080"]`,
				`args: [serve, "8080"], ports: [{containerPort: 8080, hostPort: 18080}]`, 1))
			pods := r.waitReady("default", "app=spread", 2)
			for i := range pods {
				from, to := &pods[i], &pods[1-i]
				r.eventually("the way from "+from.Spec.NodeName, func() (bool, string) { return r.reaches(from, to.Status.PodIP+":8080") })
				r.eventually("the Service from "+from.Spec.NodeName,
					func() (bool, string) { return r.reaches(from, "spread.default.svc.cluster.local:80") })
			}
			r.otherWays(pods, map[string]string{"auto": "1450", "vxlan": "1450", "wireguard": "1440"}[mode], six, a, b)
			a.reachesPods(pods)
			if out := a.show("route", "show"); strings.Contains(out, " dev bvx") != (mode == "vxlan") ||
				strings.Contains(out, " dev bwg") != (mode == "wireguard") {
				t.Errorf("routes of a in mode %s:\n%s", mode, out)
			}
			r.eventually("DNS on both machines", func() (bool, string) {
				out := r.kubectl("get", "endpointslices", "-n", "kube-system", "-l", "kubernetes.io/service-name=kube-dns", "-o",
					"jsonpath={range .items[*]}{.endpoints[0].nodeName}={.endpoints[0].conditions.ready} {end}")
				return out == "a=true b=true ", out
			})

			// Nothing may come in but from pods with a label that nobody has.
			r.apply(forbidden)
			for i := range pods {
				from, to := &pods[i], &pods[1-i]
				r.eventually("the policy on "+to.Spec.NodeName, func() (bool, string) {
					ok, out := r.reaches(from, to.Status.PodIP+":8080")
					return !ok, out
				})
			}
			r.kubectl("label", "pod", pods[0].Name, "friend=yes")
			r.eventually("the way for a friend", func() (bool, string) { return r.reaches(&pods[0], pods[1].Status.PodIP+":8080") })
			if ok, out := r.reaches(&pods[1], pods[0].Status.PodIP+":8080"); ok {
				t.Errorf("a stranger came in: %s", out)
			}
			// Even who may send nowhere may ask the DNS of its own node.
			r.apply(mute)
			r.eventually("the silence", func() (bool, string) {
				ok, out := r.reaches(&pods[0], pods[1].Status.PodIP+":8080")
				return !ok, out
			})
			if out := r.kubectl("exec", pods[0].Name, "--", "toolbox", "nslookup", "spread"); strings.TrimSpace(out) == "" {
				t.Error("no answer from DNS")
			}

			if mode == "wireguard" {
				a.keepsItsKey()
			}
			if out, err := a.try("down", "--data-dir", a.dir, "--purge"); err != nil {
				t.Fatalf("down: %v\n%s", err, out)
			}
			if out := a.show("link", "show"); strings.Contains(out, "bvx") || strings.Contains(out, "bwg") || strings.Contains(out, "brt") {
				t.Errorf("the purge left links:\n%s", out)
			}
			if out := a.show("route", "show", "proto", "98") + a.show("-6", "route", "show", "proto", "98"); out != "" {
				t.Errorf("the purge left routes:\n%s", out)
			}
		})
	}
}

// otherWays goes from pod to pod over IPv6, if pods have that; to a port of the
// other machine; and out. Pods must have the MTU.
func (r *room) otherWays(pods []v1.Pod, mtu string, six bool, machines ...*member) {
	t := r.t
	ports := make([][]string, len(machines))
	for i, m := range machines {
		ports[i] = []string{m.ip}
		if six {
			ip := fmt.Sprintf("fd99::%d", i+1)
			m.show("addr", "add", ip+"/64", "dev", "eth0", "nodad")
			ports[i] = append(ports[i], ip)
		}
	}
	l, err := net.Listen("tcp", r.subnet+".1:0")
	must(t, err)
	seen := make(chan string, 10)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen <- req.RemoteAddr
		fmt.Fprintln(w, "Hello")
	})}
	go srv.Serve(l) //nolint:errcheck // it ends with Close
	defer srv.Close()
	for i := range pods {
		from, to := &pods[i], &pods[1-i]
		if (len(to.Status.PodIPs) == 2) != six {
			t.Fatalf("addresses of %s: %v", to.Name, to.Status.PodIPs)
		}
		if six {
			r.eventually("IPv6 from "+from.Spec.NodeName,
				func() (bool, string) { return r.reaches(from, net.JoinHostPort(to.Status.PodIPs[1].IP, "8080")) })
		}
		own := 0 // the machines by their place in the list
		if machines[1].name == from.Spec.NodeName {
			own = 1
		}
		for _, host := range ports[1-own] {
			r.eventually("the host port on "+host, func() (bool, string) { return r.reaches(from, net.JoinHostPort(host, "18080")) })
		}
		if ok, out := r.reaches(from, l.Addr().String()); !ok {
			t.Errorf("the way out from %s: %s", from.Spec.NodeName, out)
		} else if host, _, _ := net.SplitHostPort(<-seen); host != machines[own].ip {
			t.Errorf("outside, a pod on %s is seen as %s, want its node's %s", from.Spec.NodeName, host, machines[own].ip)
		}
		if got := strings.TrimSpace(r.kubectl("exec", from.Name, "--", "toolbox", "cat", "/sys/class/net/eth0/mtu")); got != mtu {
			t.Errorf("MTU in a pod on %s: %s, want %s", from.Spec.NodeName, got, mtu)
		}
	}
}

// reaches fetches a page from inside a pod.
func (c *cluster) reaches(from *v1.Pod, address string) (bool, string) {
	c.t.Helper()
	out, err := c.tryKubectl("", "exec", from.Name, "--", "toolbox", "wget", "-T", "1", "-O", "-", fmt.Sprintf("http://%s/", address))
	return err == nil && strings.Contains(out, "Hello"), out
}

// reachesPods goes from the machine itself to pods, here and there, and to the
// Service that picks one of them each time.
func (m *member) reachesPods(pods []v1.Pod) {
	m.room.t.Helper()
	to := []string{pods[0].Status.PodIP + ":8080", pods[1].Status.PodIP + ":8080"}
	service := strings.TrimSpace(m.room.kubectl("get", "service", "spread", "-o", "jsonpath={.spec.clusterIP}")) + ":80"
	for range 6 {
		to = append(to, service)
	}
	for _, address := range to {
		out, err := exec.Command("nsenter", "--net=/run/netns/"+m.space, filepath.Join(m.room.bin, "toolbox"), "wget", "-T", "5", "-O", "-",
			"http://"+address+"/").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Hello") {
			m.room.t.Errorf("machine %s -> %s: %v\n%s", m.name, address, err, out)
		}
	}
}

// withoutWireGuard: a machine that cannot encrypt is told so when it joins, and
// may join later.
func (m *member) withoutWireGuard() {
	m.room.t.Helper()
	if _, err := netlink.GenlFamilyGet("wireguard"); err == nil {
		return // this kernel can
	}
	out, err := m.tryJoin(m.room.invitation()...)
	for _, words := range []string{"--network=wireguard", "modprobe wireguard", "CONFIG_WIREGUARD", "--network=vxlan"} {
		if err == nil || !strings.Contains(out, words) {
			m.room.t.Errorf("joining without WireGuard says nothing of %q (%v):\n%s", words, err, out)
		}
	}
}

// giveWireGuard gives the machine a device in userspace.
func (m *member) giveWireGuard() {
	m.room.t.Helper()
	ns, err := netns.GetFromName(m.space)
	must(m.room.t, err)
	m.room.t.Cleanup(func() { ns.Close() })
	cfg := berth.Config{DataDir: m.dir}
	wgtest.New(m.room.t, ns, cfg.WireGuard().Name)
}

// keepsItsKey: nothing but its file knows the machine's private key, and that
// is its owner's alone.
func (m *member) keepsItsKey() {
	t := m.room.t
	t.Helper()
	file := filepath.Join(m.dir, "agent", "wireguard.key")
	key, err := os.ReadFile(file)
	must(t, err)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", st.Mode(), err)
	}
	secret := strings.TrimSpace(string(key))
	for _, dir := range []string{m.dir, m.room.dir} {
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == file || !d.Type().IsRegular() || strings.Contains(p, "/containerd/") {
				return nil //nolint:nilerr // files come and go
			}
			data, err := os.ReadFile(p)
			if err == nil && strings.Contains(string(data), secret) {
				t.Errorf("%s holds the private key", p)
			}
			return nil
		}))
	}
	if out := m.room.kubectl("get", "nodes,events,configmaps", "-A", "-o", "yaml"); strings.Contains(out, secret) ||
		!strings.Contains(out, "berth.dev/wireguard") {
		t.Error("the API tells the private key, or not the public one")
	}
}

// show runs the ip program on the machine.
func (m *member) show(args ...string) string {
	m.room.t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", m.space}, args...)...).CombinedOutput()
	if err != nil {
		m.room.t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
	return string(out)
}

const forbidden = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {}
  ingress:
  - from: [{podSelector: {matchLabels: {friend: "yes"}}}]
`

const mute = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: mute}
spec:
  podSelector: {}
  policyTypes: [Egress]
`
