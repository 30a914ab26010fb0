package e2e

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

// patience bounds every wait; a wait ends as soon as its condition holds.
var patience = testtimeout.Scale(90 * time.Second)

// cluster is one `berth up` (or server) of its own data directory and ports.
type cluster struct {
	t       testing.TB
	command string
	bin     string // directory of the built binaries
	dir     string // data directory
	first   int    // first port
	extra   []string

	client  kubernetes.Interface
	changes *broadcast
	stop    context.CancelFunc
}

// newCluster prepares a cluster that is not up yet. Everything of it is purged
// when the test ends.
func newCluster(t testing.TB, extra ...string) *cluster {
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
	c := &cluster{t: t, command: "up", bin: bin, dir: dir, first: freePorts(t, 7), extra: extra}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLogs()
		}
		c.disconnect()
		out, err := c.tryBerth("down", "--data-dir", c.dir, "--purge")
		if err != nil {
			t.Errorf("purging: %v\n%s", err, out)
		}
	})
	return c
}

// freePorts finds n consecutive TCP ports that are free now, below the range
// the kernel picks from for outgoing connections.
func freePorts(t testing.TB, n int) int {
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

// up starts the cluster and connects to it.
func (c *cluster) up() string {
	c.t.Helper()
	out, err := c.tryUp()
	if err != nil {
		c.t.Fatalf("berth up: %v\n%s", err, out)
	}
	c.connect()
	return out
}

func (c *cluster) tryUp() (string, error) {
	args := append([]string{c.command, "--detach", "--data-dir", c.dir, "--ports-from", strconv.Itoa(c.first)}, c.extra...)
	return c.tryBerth(args...)
}

func (c *cluster) tryBerth(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "berth"), args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// berth runs a berth command that must succeed.
func (c *cluster) berth(args ...string) string {
	c.t.Helper()
	out, err := c.tryBerth(args...)
	if err != nil {
		c.t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) down() string { return c.berth("down", "--data-dir", c.dir) }

// kubectl runs the bundled kubectl against this cluster; it must succeed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.tryKubectl("", args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) tryKubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.kubectlCommand(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "berth"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "admin.kubeconfig"))
	cmd.WaitDelay = time.Second
	return cmd
}

// apply feeds a manifest to kubectl apply.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	if out, err := c.tryKubectl(manifest, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// connect watches the kinds that tests wait for.
func (c *cluster) connect() {
	c.t.Helper()
	c.disconnect()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "admin.kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.QPS = -1
	if c.client, err = kubernetes.NewForConfig(cfg); err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.changes = &broadcast{wake: make(chan struct{})}
	f := informers.NewSharedInformerFactory(c.client, 0)
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
			c.t.Fatal(err)
		}
	}
	f.Start(ctx.Done())
	c.stop = func() {
		stop()
		f.Shutdown()
	}
}

func (c *cluster) disconnect() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
	}
}

// eventually waits until cond holds, looking again after every change in the
// cluster (and once a second for conditions outside of it, such as traffic).
func (c *cluster) eventually(what string, cond func() (bool, string)) {
	c.t.Helper()
	deadline := time.After(patience)
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
			c.t.Fatalf("%s: not within %v; last: %s", what, patience, last)
		}
	}
}

// pods lists pods by label.
func (c *cluster) pods(ns, selector string) []v1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		c.t.Fatalf("listing pods %s in %s: %v", selector, ns, err)
	}
	return list.Items
}

// waitReady waits until exactly n pods match and all are Ready.
func (c *cluster) waitReady(ns, selector string, n int) []v1.Pod {
	c.t.Helper()
	var got []v1.Pod
	c.eventually(fmt.Sprintf("%d ready pods %s", n, selector), func() (bool, string) {
		got = c.pods(ns, selector)
		ready := 0
		var words []string
		for i := range got {
			words = append(words, describe(&got[i]))
			if podReady(&got[i]) && got[i].DeletionTimestamp == nil {
				ready++
			}
		}
		return len(got) == n && ready == n, strings.Join(words, "; ")
	})
	return got
}

func podReady(p *v1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.PodReady {
			return cond.Status == v1.ConditionTrue
		}
	}
	return false
}

func describe(p *v1.Pod) string {
	s := fmt.Sprintf("%s %s deleting=%v", p.Name, p.Status.Phase, p.DeletionTimestamp != nil)
	if p.Status.Reason != "" {
		s += fmt.Sprintf(" %s: %s", p.Status.Reason, p.Status.Message)
	}
	for _, cs := range p.Status.ContainerStatuses {
		s += fmt.Sprintf(" %s ready=%v restarts=%d", cs.Name, cs.Ready, cs.RestartCount)
		if w := cs.State.Waiting; w != nil {
			s += " " + w.Reason + " " + w.Message
		}
	}
	return s
}

// containerPIDs maps container IDs of running containers to their processes,
// from the kernel: /proc of every process whose parent is a shim of this
// cluster.
func (c *cluster) containerPIDs() map[string]int {
	c.t.Helper()
	out := map[string]int{}
	tasks := filepath.Join(c.dir, "run", "containerd", "io.containerd.runtime.v2.task", "k8s.io")
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return out
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(tasks, e.Name(), "init.pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err == nil {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				out[e.Name()] = pid
			}
		}
	}
	return out
}

func (c *cluster) pid() int {
	c.t.Helper()
	return readPID(c.t, filepath.Join(c.dir, "lock"))
}

func (c *cluster) runtimePID() int {
	c.t.Helper()
	return readPID(c.t, filepath.Join(c.dir, "run", "containerd.pid"))
}

func readPID(t testing.TB, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// dumpLogs prints the end of each log, for a failed test.
func (c *cluster) dumpLogs() {
	files, _ := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
		if len(lines) > 15 {
			lines = lines[len(lines)-15:]
		}
		c.t.Logf("--- %s\n%s", filepath.Base(f), bytes.Join(lines, []byte("\n")))
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
