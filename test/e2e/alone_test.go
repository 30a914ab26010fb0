package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/test/rig"
)

// withoutNodeControllers leaves out what `berth controllers` takes over.
const withoutNodeControllers = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller," +
	"-pod-garbage-collector-controller,-ttl-controller"

// bench is a rig seen as a cluster.
type bench struct {
	*rig.Rig
	*cluster
}

// newBench starts server and runtime. At the end of the test all of it must be
// gone.
func newBench(t *testing.T, clusterCIDR, podCIDR string, args ...string) *bench {
	t.Helper()
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN is not set: it names the directory with the built binaries (make e2e sets it)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: starting containers needs root")
	}
	r, err := rig.New(os.Getenv("BERTH_BIN"), freePorts(t, 20))
	must(t, err)
	b, before := &bench{Rig: r, cluster: &cluster{t: t, bin: r.Bin, dir: r.ServerDir()}}, look(t, r.Dir)
	t.Cleanup(func() {
		if t.Failed() {
			b.dumpLogs()
			(&cluster{t: t, dir: r.Dir}).dumpLogs()
		}
		b.disconnect()
		must(t, r.Close())
		for _, left := range look(t, r.Dir).left(before) {
			// Others may use this machine meanwhile.
			if mark := strings.TrimPrefix(host.Instance(r.Dir), "berth-"); strings.Contains(left, mark) || strings.Contains(left, r.Dir) {
				t.Errorf("left behind: %s", left)
			}
		}
	})
	must(t, r.StartServer(append([]string{"--cluster-cidr", clusterCIDR}, args...)...))
	must(t, r.StartRuntime(t.Context(), podCIDR))
	b.connect()
	return b
}

// clear deletes all pods as a user does, so that the agent cleans up.
func (b *bench) clear(a *rig.Agent) {
	b.t.Helper()
	must(b.t, os.RemoveAll(a.Manifests()))
	must(b.t, os.Mkdir(a.Manifests(), 0o755))
	b.kubectl("delete", "pods", "--all", "--all-namespaces")
	b.eventually("no pod directories", func() (bool, string) {
		dirs, err := filepath.Glob(filepath.Join(a.RootDir, "pods", "*"))
		return err == nil && len(dirs) == 0, strings.Join(dirs, " ")
	})
}

// serving waits until a health check answers.
func (b *bench) serving(url string) {
	b.t.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	b.eventually(url, func() (bool, string) {
		resp, err := client.Get(url)
		if err != nil {
			return false, err.Error()
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
}

// reached waits until a service answers on this machine.
func (b *bench) reached(service string) {
	b.t.Helper()
	b.serving("http://" + b.address(service) + "/")
}

func (b *bench) address(service string) string {
	b.t.Helper()
	s, err := b.client.CoreV1().Services("default").Get(b.t.Context(), service, metav1.GetOptions{})
	must(b.t, err)
	return s.Spec.ClusterIP
}

// containers maps the pods to their containers and how often they restarted.
func (b *bench) containers() string {
	b.t.Helper()
	var out []string
	for _, p := range b.pods("default", "") {
		for _, c := range p.Status.ContainerStatuses {
			out = append(out, fmt.Sprintf("%s %s restarts=%d", p.Name, c.ContainerID, c.RestartCount))
		}
	}
	return strings.Join(out, "\n")
}

// renewed waits until the node's lease is renewed once more.
func (b *bench) renewed(node string) {
	b.t.Helper()
	leases := b.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	was, err := leases.Get(b.t.Context(), node, metav1.GetOptions{})
	must(b.t, err)
	b.eventually("a renewed lease", func() (bool, string) {
		l, err := leases.Get(b.t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return l.Spec.RenewTime.After(was.Spec.RenewTime.Time), l.Spec.RenewTime.String()
	})
}

// ranged makes a Node without a machine and waits until it has a range: only
// node controllers give one.
func (b *bench) ranged(name string) {
	b.t.Helper()
	nodes := b.client.CoreV1().Nodes()
	_, err := nodes.Create(b.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(b.t, err)
	b.eventually("a range for "+name, func() (bool, string) {
		n, err := nodes.Get(b.t.Context(), name, metav1.GetOptions{})
		return err == nil && n.Spec.PodCIDR != "", fmt.Sprint(err)
	})
	must(b.t, nodes.Delete(b.t.Context(), name, metav1.DeleteOptions{}))
}

// unready follows a node; what it returns tells when it was not Ready since.
func (b *bench) unready(name string) func() []string {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := b.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	must(b.t, err)
	var (
		mu   sync.Mutex
		seen []string
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			n, ok := e.Object.(*v1.Node)
			if !ok {
				continue
			}
			for _, c := range n.Status.Conditions {
				if c.Type == v1.NodeReady && c.Status != v1.ConditionTrue {
					mu.Lock()
					seen = append(seen, fmt.Sprintf("%s: %s", c.Status, c.Message))
					mu.Unlock()
				}
			}
		}
	}()
	return func() []string {
		cancel()
		w.Stop()
		<-done
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

const pair = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "berth.dev/toolbox:1", args: [serve]}]
---
apiVersion: v1
kind: Pod
metadata: {name: asker, labels: {app: asker}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: asker, image: "berth.dev/toolbox:1", args: [serve]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

const static = `
apiVersion: v1
kind: Pod
metadata: {name: fixed, namespace: default, labels: {app: fixed}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: fixed, image: "berth.dev/toolbox:1", args: [serve]}]
`

// TestPartsAlone runs agent, proxy and controllers as an operator of another
// cluster would: each a process with a kubeconfig of its own beside an API
// server that runs none of them. Each is killed, and what it keeps goes on.
func TestPartsAlone(t *testing.T) {
	b := newBench(t, "10.203.0.0/16", "10.203.0.0/24", withoutNodeControllers)
	agent, err := b.StartAgent("lone", "nodeLeaseDurationSeconds: 8\n")
	must(t, err)
	proxy, err := b.StartProxy("lone", "10.203.0.0/16")
	must(t, err)
	controllers, err := b.StartControllers("10.203.0.0/16", "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s",
		"--leader-elect-retry-period=500ms")
	must(t, err)
	health := map[*rig.Part]string{
		agent.Part:       fmt.Sprintf("http://127.0.0.1:%d/healthz", agent.HealthzPort),
		proxy.Part:       fmt.Sprintf("http://127.0.0.1:%d/healthz", proxy.HealthzPort),
		controllers.Part: fmt.Sprintf("https://127.0.0.1:%d/healthz", controllers.SecurePort),
	}
	for _, url := range health {
		b.serving(url)
	}
	b.serving(fmt.Sprintf("http://127.0.0.1:%d/metrics", proxy.MetricsPort))
	must(t, b.WaitNode(t.Context(), "lone"))

	b.apply(pair)
	must(t, os.WriteFile(filepath.Join(agent.Manifests(), "fixed.yaml"), []byte(static), 0o644))
	for _, app := range []string{"web", "asker", "fixed"} {
		b.waitReady("default", "app="+app, 1)
	}
	if out := b.kubectl("logs", "web"); !strings.Contains(out, "serving") {
		t.Errorf("kubectl logs: %q", out)
	}
	if out := b.kubectl("exec", "asker", "--", "toolbox", "sh", "-c", "echo hello"); strings.TrimSpace(out) != "hello" {
		t.Errorf("kubectl exec: %q", out)
	}
	address := b.address("web")
	ask := func() {
		t.Helper()
		b.reached("web")
		b.kubectl("exec", "asker", "--", "toolbox", "wget", "-T", "5", "-O", "-", "http://"+address+"/")
	}
	ask()
	b.renewed("lone")
	b.ranged("paper-0")

	containers, unready := b.containers(), b.unready("lone")
	for i, part := range []*rig.Part{agent.Part, proxy.Part, controllers.Part} {
		part.Kill()
		b.reached("web")
		must(t, part.Start())
		b.serving(health[part])
		// Each new process does its work, and no other does it instead.
		b.renewed("lone")
		b.ranged(fmt.Sprintf("paper-%d", i+1))
		again := fmt.Sprintf("again-%d", i)
		b.kubectl("expose", "pod", "web", "--name", again, "--port=80", "--target-port=8080")
		b.reached(again)
		ask()
		if now := b.containers(); now != containers {
			t.Errorf("containers changed with the kill of part %d:\n%s\nwere\n%s", i, now, containers)
		}
	}
	if out := b.kubectl("logs", "web"); !strings.Contains(out, "serving") {
		t.Errorf("kubectl logs after the kills: %q", out)
	}
	if seen := unready(); len(seen) != 0 {
		t.Errorf("the node was not Ready: %v", seen)
	}
	b.clear(agent)
}
