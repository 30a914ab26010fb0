package network

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
	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestNetworkOfTwoMachines: pods of two hosts reach each other by address,
// by Service and by name, policies hold between them, and leaving takes
// everything away. In mode vxlan they talk through the tunnel, in mode wireguard
// through a device in userspace, which need not be in the kernel then.
func TestNetworkOfTwoMachines(t *testing.T) {
	for _, mode := range []string{"auto", "vxlan", "wireguard"} {
		t.Run(mode, func(t *testing.T) {
			flags := []string{"--network", mode}
			six := mode != "auto"
			if six {
				// The hosts have IPv4 only: IPv6 of pods must go through it.
				flags = append(flags, "--cluster-cidr", "10.224.0.0/16,fd00:10:224::/56", "--service-cidr",
					"10.225.0.0/16,fd00:10:225::/112")
			}
			r := kit.NewHosts(t, flags...)
			a, b := r.AddHost("a"), r.AddHost("b")
			if mode == "wireguard" {
				withoutWireGuard(a)
				giveWireGuard(a)
				giveWireGuard(b)
			}
			a.Join()
			b.Join()
			r.Apply(strings.Replace(kit.SpreadManifest, `args: [serve, "8080"]`,
				`args: [serve, "8080"], ports: [{containerPort: 8080, hostPort: 18080}]`, 1))
			pods := r.WaitReady("default", "app=spread", 2)
			for i := range pods {
				from, to := &pods[i], &pods[1-i]
				r.Eventually("the way from "+from.Spec.NodeName,
					func() (bool, string) { return reaches(r.Cluster, from, to.Status.PodIP+":8080") })
				r.Eventually("the Service from "+from.Spec.NodeName,
					func() (bool, string) { return reaches(r.Cluster, from, "spread.default.svc.cluster.local:80") })
			}
			otherWays(r, pods, map[string]string{"auto": "1450", "vxlan": "1450", "wireguard": "1440"}[mode], six, a, b)
			reachesPods(a, pods)
			if out := show(a, "route", "show"); strings.Contains(out, " dev bvx") != (mode == "vxlan") ||
				strings.Contains(out, " dev bwg") != (mode == "wireguard") {
				t.Errorf("routes of a in mode %s:\n%s", mode, out)
			}
			r.Eventually("DNS on both machines", func() (bool, string) {
				out := r.Kubectl("get", "endpointslices", "-n", "kube-system", "-l", "kubernetes.io/service-name=kube-dns", "-o",
					"jsonpath={range .items[*]}{.endpoints[0].nodeName}={.endpoints[0].conditions.ready} {end}")
				return out == "a=true b=true ", out
			})

			// Nothing may come in but from pods with a label that nobody has.
			r.Apply(forbidden)
			for i := range pods {
				from, to := &pods[i], &pods[1-i]
				r.Eventually("the policy on "+to.Spec.NodeName, func() (bool, string) {
					ok, out := reaches(r.Cluster, from, to.Status.PodIP+":8080")
					return !ok, out
				})
			}
			r.Kubectl("label", "pod", pods[0].Name, "friend=yes")
			r.Eventually("the way for a friend",
				func() (bool, string) { return reaches(r.Cluster, &pods[0], pods[1].Status.PodIP+":8080") })
			if ok, out := reaches(r.Cluster, &pods[1], pods[0].Status.PodIP+":8080"); ok {
				t.Errorf("a stranger came in: %s", out)
			}
			// Even who may send nowhere may ask the DNS of its own node.
			r.Apply(mute)
			r.Eventually("the silence", func() (bool, string) {
				ok, out := reaches(r.Cluster, &pods[0], pods[1].Status.PodIP+":8080")
				return !ok, out
			})
			if out := r.Kubectl("exec", pods[0].Name, "--", "toolbox", "nslookup", "spread"); strings.TrimSpace(out) == "" {
				t.Error("no answer from DNS")
			}

			if mode == "wireguard" {
				keepsItsKey(a)
			}
			if out, err := a.Try("down", "--data-dir", a.Dir, "--purge"); err != nil {
				t.Fatalf("down: %v\n%s", err, out)
			}
			if out := show(a, "link", "show"); strings.Contains(out, "bvx") || strings.Contains(out, "bwg") ||
				strings.Contains(out, "brt") {
				t.Errorf("the purge left links:\n%s", out)
			}
			if out := show(a, "route", "show", "proto", "98") + show(a, "-6", "route", "show", "proto", "98"); out != "" {
				t.Errorf("the purge left routes:\n%s", out)
			}
		})
	}
}

// otherWays goes from pod to pod over IPv6, if pods have that; to a port of the
// other host; and out. Pods must have the MTU.
func otherWays(r *kit.Hosts, pods []v1.Pod, mtu string, six bool, machines ...*kit.Host) {
	t := r.T
	ports := make([][]string, len(machines))
	for i, m := range machines {
		ports[i] = []string{m.IP}
		if six {
			ip := fmt.Sprintf("fd99::%d", i+1)
			show(m, "addr", "add", ip+"/64", "dev", "eth0", "nodad")
			ports[i] = append(ports[i], ip)
		}
	}
	l, err := net.Listen("tcp", r.Subnet+".1:0")
	kit.Must(t, err)
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
			r.Eventually("IPv6 from "+from.Spec.NodeName,
				func() (bool, string) {
					return reaches(r.Cluster, from, net.JoinHostPort(to.Status.PodIPs[1].IP, "8080"))
				})
		}
		own := 0 // the machines by their place in the list
		if machines[1].Name == from.Spec.NodeName {
			own = 1
		}
		for _, host := range ports[1-own] {
			r.Eventually("the host port on "+host,
				func() (bool, string) { return reaches(r.Cluster, from, net.JoinHostPort(host, "18080")) })
		}
		if ok, out := reaches(r.Cluster, from, l.Addr().String()); !ok {
			t.Errorf("the way out from %s: %s", from.Spec.NodeName, out)
		} else if host, _, _ := net.SplitHostPort(<-seen); host != machines[own].IP {
			t.Errorf("outside, a pod on %s is seen as %s, want its node's %s", from.Spec.NodeName, host, machines[own].IP)
		}
		if got := strings.TrimSpace(r.Kubectl("exec", from.Name, "--", "toolbox", "cat", "/sys/class/net/eth0/mtu")); got != mtu {
			t.Errorf("MTU in a pod on %s: %s, want %s", from.Spec.NodeName, got, mtu)
		}
	}
}

// reaches fetches a page from inside a pod.
func reaches(c *kit.Cluster, from *v1.Pod, address string) (bool, string) {
	c.T.Helper()
	out, err := c.TryKubectl("", "exec", from.Name, "--", "toolbox", "wget", "-T", "1", "-O", "-", fmt.Sprintf("http://%s/", address))
	return err == nil && strings.Contains(out, "Hello"), out
}

// reachesPods goes from the host itself to pods, here and there, and to the
// Service that picks one of them each time.
func reachesPods(m *kit.Host, pods []v1.Pod) {
	m.Cluster.T.Helper()
	to := []string{pods[0].Status.PodIP + ":8080", pods[1].Status.PodIP + ":8080"}
	service := strings.TrimSpace(m.Cluster.Kubectl("get", "service", "spread", "-o", "jsonpath={.spec.clusterIP}")) + ":80"
	for range 6 {
		to = append(to, service)
	}
	for _, address := range to {
		out, err := exec.Command("nsenter", "--net=/run/netns/"+m.Netns, filepath.Join(m.Cluster.Bin, "toolbox"), "wget", "-T", "5", "-O",
			"-",
			"http://"+address+"/").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Hello") {
			m.Cluster.T.Errorf("machine %s -> %s: %v\n%s", m.Name, address, err, out)
		}
	}
}

// withoutWireGuard: a host that cannot encrypt is told so when it joins, and
// may join later.
func withoutWireGuard(m *kit.Host) {
	m.Cluster.T.Helper()
	if _, err := netlink.GenlFamilyGet("wireguard"); err == nil {
		return // this kernel can
	}
	out, err := m.TryJoin(m.Cluster.JoinArgs()...)
	for _, words := range []string{"--network=wireguard", "modprobe wireguard", "CONFIG_WIREGUARD", "--network=vxlan"} {
		if err == nil || !strings.Contains(out, words) {
			m.Cluster.T.Errorf("joining without WireGuard says nothing of %q (%v):\n%s", words, err, out)
		}
	}
}

// giveWireGuard gives the host a device in userspace.
func giveWireGuard(m *kit.Host) {
	m.Cluster.T.Helper()
	ns, err := netns.GetFromName(m.Netns)
	kit.Must(m.Cluster.T, err)
	m.Cluster.T.Cleanup(func() { ns.Close() })
	cfg := berth.Config{DataDir: m.Dir}
	wgtest.New(m.Cluster.T, ns, cfg.WireGuard().Name)
}

// keepsItsKey: nothing but its file knows the host's private key, and that
// is its owner's alone.
func keepsItsKey(m *kit.Host) {
	t := m.Cluster.T
	t.Helper()
	file := filepath.Join(m.Dir, "agent", "wireguard.key")
	key, err := os.ReadFile(file)
	kit.Must(t, err)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", st.Mode(), err)
	}
	secret := strings.TrimSpace(string(key))
	for _, dir := range []string{m.Dir, m.Cluster.Dir} {
		kit.Must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
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
	if out := m.Cluster.Kubectl("get", "nodes,events,configmaps", "-A", "-o", "yaml"); strings.Contains(out, secret) ||
		!strings.Contains(out, "berth.dev/wireguard") {
		t.Error("the API tells the private key, or not the public one")
	}
}

// show runs the ip program on the host.
func show(m *kit.Host, args ...string) string {
	m.Cluster.T.Helper()
	out, err := exec.Command("ip", append([]string{"-n", m.Netns}, args...)...).CombinedOutput()
	if err != nil {
		m.Cluster.T.Fatalf("ip %v: %v\n%s", args, err, out)
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
