package fleet

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// patience ends a test that would hang; it decides nothing else.
const patience = 90 * time.Second

// verifyEnded fails if a goroutine of the fleet outlives it. The API server and
// client-go's certificate reloading, which live as long as the process, keep
// goleak from looking at all goroutines.
func verifyEnded(t *testing.T) {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 2); err != nil {
		t.Fatal(err)
	}
	for _, g := range strings.Split(b.String(), "\n\n") {
		if strings.Contains(g, "internal/fleet.(*Fleet)") || strings.Contains(g, "internal/fleet.(*crew)") || strings.Contains(g,
			"internal/fleet.(*clock)") {
			t.Errorf("outlives the fleet:\n%s", g)
		}
	}
}

// TestPool: a job never runs twice at a time, a kick while it runs makes it run
// once more, and workers end with their context.
func TestPool(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := newPool(newClock())
	inside, twice, runs := atomic.Int32{}, atomic.Bool{}, make(chan struct{})
	j := &job{pool: c, step: func(ctx context.Context) time.Time {
		if inside.Add(1) > 1 {
			twice.Store(true)
		}
		select {
		case runs <- struct{}{}:
		case <-ctx.Done():
		}
		inside.Add(-1)
		return time.Time{}
	}}
	done := make(chan struct{})
	go func() { c.run(ctx, 4); close(done) }()
	for range 100 {
		c.trigger(j) // at rest, queued, or running
		<-runs
		c.trigger(j)
	}
	cancel()
	<-done
	if twice.Load() {
		t.Error("a job ran twice at a time")
	}
}

func testConfig(client *rest.Config) Config {
	return Config{Client: client, Nodes: 12, Prefix: "h", Zones: 3, LeaseSeconds: 4, ReportEvery: time.Minute, CPUs: 4,
		Memory:  resource.MustParse("8Gi"),
		MaxPods: 20, Pods: 2, RegisterRate: 1000, Version: "v1.37.0", Log: slog.New(slog.DiscardHandler), Out: &lockedBuffer{}}
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// observer counts what the API holds, by watch.
type observer struct {
	*testing.T
	ctx    context.Context
	client kubernetes.Interface
}

// await watches nodes until as many as wanted fit.
func (o *observer) await(what string, want int, fits func(*v1.Node) bool) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, patience)
	defer cancel()
	list, err := o.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		o.Fatal(err)
	}
	w, err := o.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		o.Fatal(err)
	}
	awaitCount(o, "nodes are "+what, want, list.Items, w, fits)
}

// awaitPods watches pods until as many as wanted fit.
func (o *observer) awaitPods(what string, want int, fits func(*v1.Pod) bool) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, patience)
	defer cancel()
	list, err := o.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		o.Fatal(err)
	}
	w, err := o.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		o.Fatal(err)
	}
	awaitCount(o, "pods are "+what, want, list.Items, w, fits)
}

// awaitCount follows a list with a watch, which it stops, until as many
// objects as wanted fit.
func awaitCount[T any, P interface {
	*T
	metav1.Object
}](o *observer, what string, want int, items []T, w watch.Interface, fits func(P) bool) {
	o.Helper()
	defer w.Stop()
	fitting := map[string]bool{}
	note := func(obj P, ok bool) {
		if delete(fitting, obj.GetName()); ok {
			fitting[obj.GetName()] = true
		}
	}
	for i := range items {
		note(&items[i], fits(&items[i]))
	}
	for len(fitting) != want {
		e, ok := <-w.ResultChan()
		if !ok {
			o.Fatalf("%d %s, want %d", len(fitting), what, want)
		}
		if obj, is := e.Object.(any).(P); is {
			note(obj, e.Type != watch.Deleted && fits(obj))
		}
	}
}

func status(n *v1.Node) v1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func isReady(n *v1.Node) bool { return status(n) == v1.ConditionTrue && len(n.Spec.Taints) == 0 }

func isRunning(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return p.Status.Phase == v1.PodRunning && c.Status == v1.ConditionTrue
		}
	}
	return false
}

// containers tells how often those of the first node began again.
func (o *observer) containers(when string) (ids []string) {
	o.Helper()
	list, err := o.client.CoreV1().Pods("").List(o.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=h-0"})
	if err != nil {
		o.Fatal(err)
	}
	for i := range list.Items {
		for _, c := range list.Items[i].Status.ContainerStatuses {
			ids = append(ids, fmt.Sprint(c.Name, " restarts ", c.RestartCount))
		}
	}
	if len(ids) == 0 {
		o.Fatalf("%s: no containers on h-0", when)
	}
	slices.Sort(ids)
	return ids
}

// TestFleet: nodes become Ready and run pods; a zone that is stopped is found
// out by the real node health controller and comes back; nodes that say they
// are not ready are believed; and in the end nothing is left.
func TestFleet(t *testing.T) {
	conf := apitest.Start(t)
	client := kubernetes.NewForConfigOrDie(conf)
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		factory.Shutdown()
	}()
	o := &observer{t, ctx, client}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	settings := health.Defaults()
	settings.Grace = 5 * time.Second
	wg.Go(func() {
		if err := health.Run(ctx, health.Config{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler),
			Settings: settings}); err != nil && ctx.Err() == nil {
			t.Errorf("running the node health controller: %v", err)
		}
	})
	f, err := newFleet(testConfig(conf))
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.run(running) }()

	o.await("Ready", 12, isReady)
	o.awaitPods("running", 24, isRunning)

	act := func(verb string, s selection) {
		for _, h := range f.choose(&s) {
			f.act(h, verb)
		}
	}
	act("stop", selection{Zone: "zone-b"})
	o.await("Unknown", 4, func(n *v1.Node) bool { return status(n) == v1.ConditionUnknown })
	o.awaitPods("not ready", 8, func(p *v1.Pod) bool { return !isRunning(p) })
	act("resume", selection{Zone: "zone-b"})
	o.await("Ready", 12, isReady)
	o.awaitPods("running", 24, isRunning)

	// Anyone who is cut off goes on meanwhile; anyone who stops starts its containers
	// again.
	var before, after []string
	for _, verb := range []string{"cut", "stop"} {
		before = o.containers(verb)
		act(verb, selection{Names: []string{"h-0"}})
		o.await("Unknown", 1, func(n *v1.Node) bool { return status(n) == v1.ConditionUnknown && n.Name == "h-0" })
		o.awaitPods("not ready", 2, func(p *v1.Pod) bool { return !isRunning(p) })
		act("resume", selection{Names: []string{"h-0"}})
		o.await("Ready", 12, isReady)
		o.awaitPods("running", 24, isRunning)
		if after = o.containers(verb); slices.Equal(before, after) != (verb == "cut") {
			t.Errorf("%s: containers of h-0 were %v and are %v", verb, before, after)
		}
	}

	act("notReady", selection{Count: 3})
	o.await("not ready by their own word", 3, func(n *v1.Node) bool { return status(n) == v1.ConditionFalse })
	act("resume", selection{})
	o.await("Ready", 12, isReady)

	// A Node that someone deletes registers again.
	if err := client.CoreV1().Nodes().Delete(ctx, "h-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o.await("Ready", 12, isReady)
	// A pod that someone deletes is ended and confirmed.
	if err := client.CoreV1().Pods("default").Delete(ctx, "h-1-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o.awaitPods("there", 23, func(*v1.Pod) bool { return true })

	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	verifyEnded(t)
	f.summary()
	if err := f.cleanup(ctx); err != nil {
		t.Fatal(err)
	}
	o.await("there", 0, func(*v1.Node) bool { return true })
	o.awaitPods("there", 0, func(*v1.Pod) bool { return true })
	leases, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(leases.Items); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// TestRunPlaysTheScript runs a whole short fleet as the command does.
func TestRunPlaysTheScript(t *testing.T) {
	conf := apitest.Start(t)
	cfg := testConfig(conf)
	out := &lockedBuffer{}
	var err error
	cfg.Script, err = ParseScript([]byte("- at: 200ms\n  resume: {}\n- at: 100ms\n  stop: {percent: 50}\n"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Out, cfg.Duration, cfg.Pods = out, 3*time.Second, 0
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"script: stop 50 % of all nodes: 6 nodes", "script: resume all nodes: 12 nodes",
		"at most 12 of 12 nodes Ready", "deleting 12 Nodes"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	list, err := kubernetes.NewForConfigOrDie(conf).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("left behind: %d nodes, %v", len(list.Items), err)
	}
}

func TestExampleScripts(t *testing.T) {
	files, err := filepath.Glob("../../examples/fleet/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := ParseScript(text); err != nil || len(s) == 0 {
			t.Errorf("%s: %d acts, %v", file, len(s), err)
		}
	}
}

func TestScriptErrors(t *testing.T) {
	for text, want := range map[string]string{
		"- at: 1m\n  kill: {}":                       "[0].kill is not a field: allowed are at, cut, notReady, resume, stop",
		"- at: 1m":                                   "has 0 actions: exactly one of",
		"- at: 1m\n  cut: {percent: 120}":            "percent at most 100",
		"- at: soon\n  cut: {}":                      "such as \"90s\"",
		"- at: 1s\n  cut: {zone: a, names: [h-1]}\n": "must not both be set",
	} {
		if _, err := ParseScript([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", text, err, want)
		}
	}
}

// TestWheel compares the wheel with a list of due times on random input.
func TestWheel(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := wheel{start: start}
	jobs := make([]*job, 50)
	due := map[*job]time.Time{}
	for i := range jobs {
		jobs[i] = &job{}
	}
	now, fired := start, 0
	seed := uint64(1)
	next := func(n uint64) uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed >> 33 % n }
	for range 20000 {
		switch next(3) {
		case 0, 1:
			j := jobs[next(50)]
			// Up to three turns of the wheel away, and sometimes past.
			at := now.Add(time.Duration(next(uint64(3*slots*tick))) - time.Second)
			w.set(j, at)
			due[j] = at
			if at.Before(now) {
				due[j] = now // it can come now at the earliest
			}
		default:
			now = now.Add(time.Duration(next(uint64(5 * time.Second))))
			for _, j := range w.advance(now) {
				at, planned := due[j]
				if !planned || at.After(now) {
					t.Fatalf("at %s a job came that is due at %s (%t)", now.Sub(start), at.Sub(start), planned)
				}
				delete(due, j)
				fired++
			}
			for _, at := range due {
				if now.Sub(at) >= 2*tick {
					t.Fatalf("a job due at %s was not there at %s", at.Sub(start), now.Sub(start))
				}
			}
		}
	}
	if fired < 1000 {
		t.Errorf("only %d jobs came", fired)
	}
}

func ExampleSelect() {
	fmt.Println(&selection{Zone: "zone-b", Percent: 10})
	// Output: 10 % of zone zone-b
}
