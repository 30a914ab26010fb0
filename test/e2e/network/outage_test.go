package network

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestDNSOutlivesTheServer kills the control plane under a node: its pods go
// on finding what was known, learn that other names do not exist, and find
// what is new once the control plane is back.
func TestDNSOutlivesTheServer(t *testing.T) {
	r := kit.NewHosts(t)
	a := r.AddHost("a")
	a.Join()
	r.Apply(kit.SpreadManifest)
	r.WaitReady("default", "app=spread", 1)
	want := service(r.Cluster, "spread").Spec.ClusterIP
	r.Eventually("names in the pod", func() (bool, string) { return finds(a, "spread", want) })

	kit.Must(t, syscall.Kill(r.PID(), syscall.SIGKILL))
	r.Disconnect()
	for i := range 20 {
		for name, ip := range map[string]string{"spread": want, "spread.default.svc.cluster.local": want, "spread.default": want} {
			if ok, out := finds(a, name, ip); !ok {
				t.Errorf("round %d without a control plane: %s is not at %s: %s", i, name, ip, out)
			}
		}
		if ok, out := finds(a, "later.default.svc.cluster.local.", "no such host"); !ok {
			t.Errorf("round %d: a name that nobody has: %s", i, out)
		}
	}

	r.Up()
	r.Apply(strings.NewReplacer("name: spread", "name: later").Replace(kit.SpreadManifest[strings.Index(kit.SpreadManifest,
		"apiVersion: v1\nkind: Service"):]))
	later := service(r.Cluster, "later").Spec.ClusterIP
	r.Eventually("a name that is new since the outage", func() (bool, string) { return finds(a, "later", later) })
	if ok, out := finds(a, "spread", want); !ok {
		t.Errorf("after the outage: %s", out)
	}
}

// finds asks for a name in the network, and with the files, of the host's
// only container of the toolbox; no API server takes part.
func finds(m *kit.Host, name, want string) (bool, string) {
	m.Cluster.T.Helper()
	node := &kit.Cluster{T: m.Cluster.T, Dir: m.Dir}
	for _, pid := range node.ContainerPIDs() {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || filepath.Base(exe) != "toolbox" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, "nsenter", "-t", fmt.Sprint(pid), "-n", "-m", "/bin/toolbox", "nslookup",
			name).CombinedOutput()
		return strings.Contains(string(out), want), fmt.Sprintf("%s (%v)", out, err)
	}
	return false, "no container of the toolbox runs"
}

// TestNetworkOfSomebodyElse starts without a pod network: the node says what it
// lacks, and is Ready once a CNI configuration is there.
func TestNetworkOfSomebodyElse(t *testing.T) {
	c := kit.NewCluster(t, "--network", "none")
	out := c.Up()
	conf := filepath.Join(c.Dir, "agent", "cni")
	if !strings.Contains(out, conf) {
		t.Errorf("up does not say where the configuration goes:\n%s", out)
	}
	ready := func(want string) func() (bool, string) {
		return func() (bool, string) {
			got := c.Kubectl("get", "nodes", "-o",
				`jsonpath={range .items[0].status.conditions[?(@.type=="Ready")]}{.status} {.message}{end}`)
			return strings.HasPrefix(got, want), got
		}
	}
	c.Eventually("what the node lacks", ready("False container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"))
	c.Apply(kit.SpreadManifest)
	bridge := fmt.Sprintf("bex%d", os.Getpid())
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "del", bridge).CombinedOutput(); err != nil {
			t.Errorf("removing the bridge: %v %s", err, out)
		}
	})
	kit.Must(t, os.MkdirAll(conf, 0o755))
	kit.Must(t, os.WriteFile(filepath.Join(conf, "10-mine.conflist"),
		fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "mine", "plugins": [{"type": "bridge", "bridge": %q, "isGateway": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.222.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
			bridge, filepath.Join(c.Dir, "leases")), 0o644))
	c.Eventually("the node is Ready", ready("True"))
	pods := c.WaitReady("default", "app=spread", 1)
	if !strings.HasPrefix(pods[0].Status.PodIP, "10.222.7.") {
		t.Errorf("the pod has address %s, of another network", pods[0].Status.PodIP)
	}
}
