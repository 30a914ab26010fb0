package kit

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/testkit/testtimeout"
)

// Timeout bounds every wait; a wait ends as soon as its condition holds.
var Timeout = testtimeout.Scale(90 * time.Second)

// Cluster is one `berth up` (or server) of its own data directory and ports.
type Cluster struct {
	T         testing.TB
	Command   string
	Bin       string // directory of the built binaries
	Dir       string // data directory
	FirstPort int    // of 7
	Flags     []string

	Client  kubernetes.Interface
	changes *broadcast
	stop    context.CancelFunc
}

// NewCluster prepares a cluster that is not up yet. Everything of it is purged
// when the test ends.
func NewCluster(t testing.TB, extra ...string) *Cluster {
	t.Helper()
	bin := os.Getenv("BERTH_BIN")
	if bin == "" {
		t.Skip("BERTH_BIN is not set: it names the directory with the built binaries (make e2e sets it)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: starting containers needs root")
	}
	dir, err := os.MkdirTemp("", "be")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{T: t, Command: "up", Bin: bin, Dir: dir, FirstPort: FreePorts(t, 7), Flags: extra}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLogs()
		}
		c.Disconnect()
		out, err := c.TryBerth("down", "--data-dir", c.Dir, "--purge")
		if err != nil {
			t.Errorf("purging: %v\n%s", err, out)
		}
	})
	return c
}

// FreePorts finds n consecutive TCP ports that are free now, below the range
// the kernel picks from for outgoing connections.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
next:
	for first := 21000 + os.Getpid()%500*16; first < 32000; first += n {
		var held []net.Listener
		for i := range n {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(first+i))
			if err != nil {
				for _, l := range held {
					l.Close()
				}
				continue next
			}
			held = append(held, l)
		}
		for _, l := range held {
			l.Close()
		}
		return first
	}
	t.Fatal("no free ports")
	return 0
}

// Up starts the cluster and connects to it.
func (c *Cluster) Up() string {
	c.T.Helper()
	out, err := c.TryUp()
	if err != nil {
		c.T.Fatalf("berth up: %v\n%s", err, out)
	}
	c.Connect()
	return out
}

// TryUp starts the cluster and returns what berth up said.
func (c *Cluster) TryUp() (string, error) {
	args := append([]string{c.Command, "--detach", "--data-dir", c.Dir, "--ports-from", strconv.Itoa(c.FirstPort)}, c.Flags...)
	return c.TryBerth(args...)
}

// TryBerth runs a berth command and returns its output.
func (c *Cluster) TryBerth(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "berth"), args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Berth runs a berth command that must succeed.
func (c *Cluster) Berth(args ...string) string {
	c.T.Helper()
	out, err := c.TryBerth(args...)
	if err != nil {
		c.T.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Down stops the cluster and keeps its data.
func (c *Cluster) Down() string { return c.Berth("down", "--data-dir", c.Dir) }

// Kubectl runs the bundled kubectl against this cluster; it must succeed.
func (c *Cluster) Kubectl(args ...string) string {
	c.T.Helper()
	out, err := c.TryKubectl("", args...)
	if err != nil {
		c.T.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TryKubectl runs kubectl with an input and returns its output.
func (c *Cluster) TryKubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// KubectlCommand is kubectl for this cluster, not started yet.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "berth"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.Dir, "admin.kubeconfig"))
	cmd.WaitDelay = time.Second
	return cmd
}

// Apply feeds a manifest to kubectl apply.
func (c *Cluster) Apply(manifest string) {
	c.T.Helper()
	if out, err := c.TryKubectl(manifest, "apply", "-f", "-"); err != nil {
		c.T.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// Connect watches the kinds that tests wait for.
func (c *Cluster) Connect() {
	c.T.Helper()
	c.Disconnect()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, "admin.kubeconfig"))
	if err != nil {
		c.T.Fatal(err)
	}
	cfg.QPS = -1
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		c.T.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.changes = &broadcast{wake: make(chan struct{})}
	f := informers.NewSharedInformerFactory(c.Client, 0)
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.changes.send() }, UpdateFunc: func(any, any) { c.changes.send() },
		DeleteFunc: func(any) { c.changes.send() },
	}
	for _, inf := range []cache.SharedIndexInformer{
		f.Core().V1().Pods().Informer(), f.Core().V1().Nodes().Informer(), f.Core().V1().Events().Informer(),
		f.Core().V1().Namespaces().Informer(),
		f.Core().V1().ServiceAccounts().Informer(), f.Apps().V1().Deployments().Informer(), f.Discovery().V1().EndpointSlices().Informer(),
	} {
		if _, err := inf.AddEventHandler(handler); err != nil {
			c.T.Fatal(err)
		}
	}
	f.Start(ctx.Done())
	c.stop = func() {
		stop()
		f.Shutdown()
	}
}

// Disconnect ends the watches of Connect.
func (c *Cluster) Disconnect() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

// Changed is closed at the next change of what Connect watches.
func (c *Cluster) Changed() <-chan struct{} { return c.changes.wait() }

// Eventually waits until cond holds, looking again after every change in the
// cluster (and once a second for conditions outside of it, such as traffic).
func (c *Cluster) Eventually(what string, cond func() (bool, string)) {
	c.T.Helper()
	deadline := time.After(Timeout)
	last := ""
	for {
		wake := c.changes.wait()
		ok, detail := cond()
		if ok {
			return
		}
		last = detail
		select {
		case <-wake:
		case <-time.After(time.Second):
		case <-deadline:
			c.T.Fatalf("%s: not within %v; last: %s", what, Timeout, last)
		}
	}
}

// Pods lists pods by label.
func (c *Cluster) Pods(ns, selector string) []v1.Pod {
	c.T.Helper()
	list, err := c.Client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		c.T.Fatalf("listing pods %s in %s: %v", selector, ns, err)
	}
	return list.Items
}

// WaitReady waits until exactly n pods match and all are Ready.
func (c *Cluster) WaitReady(ns, selector string, n int) []v1.Pod {
	c.T.Helper()
	var got []v1.Pod
	c.Eventually(fmt.Sprintf("%d ready pods %s", n, selector), func() (bool, string) {
		got = c.Pods(ns, selector)
		ready := 0
		var words []string
		for i := range got {
			words = append(words, Describe(&got[i]))
			if PodReady(&got[i]) && got[i].DeletionTimestamp == nil {
				ready++
			}
		}
		return len(got) == n && ready == n, strings.Join(words, "; ")
	})
	return got
}

// PID is the process of berth.
func (c *Cluster) PID() int {
	c.T.Helper()
	return readPID(c.T, filepath.Join(c.Dir, "lock"))
}

// RuntimePID is the process of the container runtime.
func (c *Cluster) RuntimePID() int {
	c.T.Helper()
	return readPID(c.T, filepath.Join(c.Dir, "run", "containerd.pid"))
}

// dumpLogs prints the end of each log, for a failed test.
func (c *Cluster) dumpLogs() {
	files, _ := filepath.Glob(filepath.Join(c.Dir, "logs", "*.log"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
		if len(lines) > 15 {
			lines = lines[len(lines)-15:]
		}
		c.T.Logf("--- %s\n%s", filepath.Base(f), bytes.Join(lines, []byte("\n")))
	}
}

// broadcast wakes everybody who waits, as often as send is called.
type broadcast struct {
	mu   sync.Mutex
	wake chan struct{}
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.wake)
	b.wake = make(chan struct{})
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake
}

// NodeName is the name of the first node.
func (c *Cluster) NodeName() string {
	c.T.Helper()
	return c.Kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
}

// WaitPodEvent waits for an event of a pod.
func (c *Cluster) WaitPodEvent(pod, reason, text string) {
	c.T.Helper()
	c.Eventually("event "+reason+" "+text, func() (bool, string) {
		list, err := c.Client.CoreV1().Events("default").List(context.Background(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return false, err.Error()
		}
		seen := ""
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return true, ""
			}
			seen += e.Reason + " " + e.Message + "; "
		}
		return false, seen
	})
}

// MustUp starts berth again; the test's client finds it by itself.
func (c *Cluster) MustUp(t *testing.T) {
	t.Helper()
	if out, err := c.TryUp(); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
}

// NodeProxy asks the node for a path through the API server.
func (c *Cluster) NodeProxy(path string) string {
	c.T.Helper()
	return c.Kubectl("get", "--raw", "/api/v1/nodes/"+c.NodeName()+"/proxy/"+path)
}

// In is the same cluster whose failures belong to a subtest.
func (c *Cluster) In(t *testing.T) *Cluster {
	sub := *c
	sub.T = t
	return &sub
}

// Node is the only node.
func (c *Cluster) Node() *v1.Node {
	c.T.Helper()
	list, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		c.T.Fatalf("listing nodes: %d, %v", len(list.Items), err)
	}
	return &list.Items[0]
}

// PodEvents are a pod's events as "REASON message".
func (c *Cluster) PodEvents(p *v1.Pod) (out []string) {
	list, err := c.Client.CoreV1().Events(p.Namespace).List(context.Background(),
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	if err != nil {
		c.T.Fatal(err)
	}
	for i := range list.Items {
		out = append(out, list.Items[i].Reason+" "+list.Items[i].Message)
	}
	return out
}

// Pod reads a pod of namespace default.
func (c *Cluster) Pod(name string) *v1.Pod {
	c.T.Helper()
	p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	return p
}

// WaitPod waits until a pod is as it should be.
func (c *Cluster) WaitPod(name, what string, ok func(*v1.Pod) bool) {
	c.T.Helper()
	c.Eventually(name+" "+what, func() (bool, string) {
		p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return ok(p), Describe(p)
	})
}
