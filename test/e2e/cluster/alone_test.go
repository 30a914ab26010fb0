package cluster

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

	"github.com/berth-dev/berth/test/e2e/kit"
	"github.com/berth-dev/berth/test/rig"
)

// withoutNodeControllers leaves out what `berth controllers` takes over.
const withoutNodeControllers = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller," +
	"-pod-garbage-collector-controller,-ttl-controller"

// serving waits until a health check answers.
func serving(b *kit.Rig, url string) {
	b.T.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	b.Eventually(url, func() (bool, string) {
		resp, err := client.Get(url)
		if err != nil {
			return false, err.Error()
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
}

// reached waits until a service answers on this host.
func reached(b *kit.Rig, service string) {
	b.T.Helper()
	serving(b, "http://"+address(b, service)+"/")
}

func address(b *kit.Rig, service string) string {
	b.T.Helper()
	s, err := b.Cluster.Client.CoreV1().Services("default").Get(b.T.Context(), service, metav1.GetOptions{})
	kit.Must(b.T, err)
	return s.Spec.ClusterIP
}

// containersOf maps the pods to their containers and how often they restarted.
func containersOf(b *kit.Rig) string {
	b.T.Helper()
	var out []string
	for _, p := range b.Pods("default", "") {
		for _, c := range p.Status.ContainerStatuses {
			out = append(out, fmt.Sprintf("%s %s restarts=%d", p.Name, c.ContainerID, c.RestartCount))
		}
	}
	return strings.Join(out, "\n")
}

// renewed waits until the node's lease is renewed once more.
func renewed(b *kit.Rig, node string) {
	b.T.Helper()
	leases := b.Cluster.Client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	was, err := leases.Get(b.T.Context(), node, metav1.GetOptions{})
	kit.Must(b.T, err)
	b.Eventually("a renewed lease", func() (bool, string) {
		l, err := leases.Get(b.T.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return l.Spec.RenewTime.After(was.Spec.RenewTime.Time), l.Spec.RenewTime.String()
	})
}

// ranged makes a Node without a host and waits until it has a range: only
// node controllers give one.
func ranged(b *kit.Rig, name string) {
	b.T.Helper()
	nodes := b.Cluster.Client.CoreV1().Nodes()
	_, err := nodes.Create(b.T.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	kit.Must(b.T, err)
	b.Eventually("a range for "+name, func() (bool, string) {
		n, err := nodes.Get(b.T.Context(), name, metav1.GetOptions{})
		return err == nil && n.Spec.PodCIDR != "", fmt.Sprint(err)
	})
	kit.Must(b.T, nodes.Delete(b.T.Context(), name, metav1.DeleteOptions{}))
}

// unready follows a node; what it returns tells when it was not Ready since.
func unready(b *kit.Rig, name string) func() []string {
	b.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := b.Cluster.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	kit.Must(b.T, err)
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
	b := kit.NewRig(t, "10.203.0.0/16", "10.203.0.0/24", withoutNodeControllers)
	agent, err := b.StartAgent("lone", "nodeLeaseDurationSeconds: 8\n")
	kit.Must(t, err)
	proxy, err := b.StartProxy("lone", "10.203.0.0/16")
	kit.Must(t, err)
	controllers, err := b.StartControllers("10.203.0.0/16", "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s",
		"--leader-elect-retry-period=500ms")
	kit.Must(t, err)
	health := map[*rig.Part]string{
		agent.Part:       fmt.Sprintf("http://127.0.0.1:%d/healthz", agent.HealthzPort),
		proxy.Part:       fmt.Sprintf("http://127.0.0.1:%d/healthz", proxy.HealthzPort),
		controllers.Part: fmt.Sprintf("https://127.0.0.1:%d/healthz", controllers.SecurePort),
	}
	for _, url := range health {
		serving(b, url)
	}
	serving(b, fmt.Sprintf("http://127.0.0.1:%d/metrics", proxy.MetricsPort))
	kit.Must(t, b.WaitNode(t.Context(), "lone"))

	b.Apply(pair)
	kit.Must(t, os.WriteFile(filepath.Join(agent.Manifests(), "fixed.yaml"), []byte(static), 0o644))
	for _, app := range []string{"web", "asker", "fixed"} {
		b.WaitReady("default", "app="+app, 1)
	}
	if out := b.Kubectl("logs", "web"); !strings.Contains(out, "serving") {
		t.Errorf("kubectl logs: %q", out)
	}
	if out := b.Kubectl("exec", "asker", "--", "toolbox", "sh", "-c", "echo hello"); strings.TrimSpace(out) != "hello" {
		t.Errorf("kubectl exec: %q", out)
	}
	address := address(b, "web")
	ask := func() {
		t.Helper()
		reached(b, "web")
		b.Kubectl("exec", "asker", "--", "toolbox", "wget", "-T", "5", "-O", "-", "http://"+address+"/")
	}
	ask()
	renewed(b, "lone")
	ranged(b, "paper-0")

	containers, unready := containersOf(b), unready(b, "lone")
	for i, part := range []*rig.Part{agent.Part, proxy.Part, controllers.Part} {
		part.Kill()
		reached(b, "web")
		kit.Must(t, part.Start())
		serving(b, health[part])
		// Each new process does its work, and no other does it instead.
		renewed(b, "lone")
		ranged(b, fmt.Sprintf("paper-%d", i+1))
		again := fmt.Sprintf("again-%d", i)
		b.Kubectl("expose", "pod", "web", "--name", again, "--port=80", "--target-port=8080")
		reached(b, again)
		ask()
		if now := containersOf(b); now != containers {
			t.Errorf("containers changed with the kill of part %d:\n%s\nwere\n%s", i, now, containers)
		}
	}
	if out := b.Kubectl("logs", "web"); !strings.Contains(out, "serving") {
		t.Errorf("kubectl logs after the kills: %q", out)
	}
	if seen := unready(); len(seen) != 0 {
		t.Errorf("the node was not Ready: %v", seen)
	}
	b.Clear(agent)
}
