package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientset "k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/runtime/fake"
	"github.com/berth-dev/berth/internal/journal"
)

// patience ends a test that would hang; it decides nothing else.
const patience = 30 * time.Second

// agentUnderTest is a manager with real workers over the fake runtime and a
// fake API.
type agentUnderTest struct {
	testing.TB
	rt  *fake.Runtime
	api *clientset.Clientset
	m   *Manager
	ctx context.Context

	watcher *runtime.Watcher
}

type noProbes struct{}

func (noProbes) Sync(types.UID, []Target)           {}
func (noProbes) Results(types.UID) map[string]Probe { return nil }

func newAgent(t *testing.T, prepare ...func(*fake.Runtime)) *agentUnderTest {
	a, stop := startAgent(t, func(c *Config, rt *fake.Runtime) {
		for _, f := range prepare {
			f(rt)
		}
	})
	t.Cleanup(func() {
		stop()
		goleak.VerifyNone(t)
	})
	return a
}

// startAgent runs a manager; stop ends it and everything of it.
func startAgent(t testing.TB, change func(*Config, *fake.Runtime)) (a *agentUnderTest, stop func()) {
	w := newFixture(t) // for its collaborators
	cfg := w.m.cfg
	cfg.Now, cfg.SandboxPatience = time.Now, 100*time.Millisecond
	a = &agentUnderTest{TB: t, rt: fake.New(func() time.Time { return cfg.Now() }), api: clientset.NewClientset()}
	a.watcher = runtime.NewWatcher(runtime.WatcherConfig{Service: a.rt, Log: slog.New(slog.DiscardHandler),
		Notify: func(uid types.UID) { a.m.RuntimeChanged(uid) }})
	cfg.Client, cfg.Service, cfg.Runtime, cfg.Recorder = a.api, a.rt, a.watcher, &record.FakeRecorder{}
	cfg.Volumes, cfg.Images, cfg.Cgroups, cfg.Admitter, cfg.Hooks = calm{}, calmImages{}, calmCgroups{}, calm{}, hooks{w}
	cfg.Configs, cfg.Probes, cfg.Journal = configs{&fixture{m: w.m, mounted: true}}, noProbes{}, journal.Discard
	change(&cfg, a.rt)
	a.m = NewManager(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	a.ctx = ctx
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.watcher.Run(ctx) })
	wg.Go(func() { _ = a.m.Run(ctx) })
	return a, func() {
		cancel()
		wg.Wait()
	}
}

// calm is collaborators that always do what they are asked.
type calm struct{}

func (calm) Mount(context.Context, *v1.Pod) error     { return nil }
func (calm) Unmount(context.Context, types.UID) error { return nil }
func (calm) Update(*v1.Pod)                           {}

type calmImages struct{}

func (calmImages) Ensure(_ context.Context, _ *v1.Pod, c *v1.Container) (string, error) {
	return c.Image, nil
}

type calmCgroups struct{}

func (calmCgroups) Ensure(*v1.Pod) error   { return nil }
func (calmCgroups) Remove(types.UID) error { return nil }

func (calm) Admit(context.Context, *v1.Pod, bool) *Rejection { return nil }
func (calm) Resize(context.Context, *v1.Pod) *Rejection      { return nil }
func (calm) Forget(types.UID)                                {}
func (calm) Settled(types.UID)                               {}

// create makes a pod in the API and tells the manager as a source would.
func (a *agentUnderTest) create(name string) *v1.Pod {
	a.Helper()
	p := testPod(v1.RestartPolicyAlways, "app")
	p.Name, p.UID = name, types.UID("uid-"+name)
	p, err := a.api.CoreV1().Pods("default").Create(a.ctx, p, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.m.Set(p, false)
	return p
}

// await waits until the pod in the API is as wanted.
func (a *agentUnderTest) await(name string, ok func(*v1.Pod) bool) *v1.Pod {
	a.Helper()
	w, err := a.api.CoreV1().Pods("default").Watch(a.ctx, metav1.ListOptions{})
	if err != nil {
		a.Fatal(err)
	}
	defer w.Stop()
	deadline := time.After(patience)
	for {
		p, err := a.api.CoreV1().Pods("default").Get(a.ctx, name, metav1.GetOptions{})
		if err != nil {
			p = nil
		}
		if ok(p) {
			return p
		}
		select {
		case <-w.ResultChan():
		case <-deadline:
			a.Fatalf("pod %s does not get there: %+v", name, p)
		}
	}
}

func isRunning(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodRunning }

// TestHangingRuntime: a runtime call that does not come back holds up one pod,
// and not even its deletion.
func TestHangingRuntime(t *testing.T) {
	a := newAgent(t, func(rt *fake.Runtime) {
		rt.Before = func(ctx context.Context, call, object string) error {
			if call == "RunPodSandbox" && object == "stuck" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
	})
	stuck := a.create("stuck")
	for i := range 20 {
		a.create(fmt.Sprintf("p%d", i))
	}
	for i := range 20 {
		a.await(fmt.Sprintf("p%d", i), isRunning)
	}
	if p := a.await("stuck", func(p *v1.Pod) bool { return p.Status.StartTime != nil }); p.Status.Phase != v1.PodPending {
		t.Errorf("the stuck pod is %s", p.Status.Phase)
	}
	gone := stuck.DeepCopy()
	grace := int64(30)
	at := metav1.Now()
	gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = &at, &grace
	a.m.Set(gone, false)
	a.await("stuck", func(p *v1.Pod) bool { return p == nil })
}

// TestOutlast: a call that is given up has time to finish, less of it when the
// agent ends.
func TestOutlast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			cause error
			want  time.Duration
		}{"no longer wanted": {errUnwanted, 20 * time.Second}, "the agent ends": {nil, 5 * time.Second}} {
			ctx, cancel := context.WithCancelCause(t.Context())
			longer, stop := outlast(ctx, 20*time.Second)
			time.Sleep(time.Hour)
			if longer.Err() != nil {
				t.Errorf("%s: ended before its parent", name)
			}
			began := time.Now()
			cancel(test.cause)
			<-longer.Done()
			if took := time.Since(began); took != test.want {
				t.Errorf("%s: ended after %v, want %v", name, took, test.want)
			}
			stop()
			longer, stop = outlast(ctx, 20*time.Second)
			synctest.Wait()
			stop()
			if longer.Err() == nil {
				t.Errorf("%s: goes on after its end", name)
			}
		}
	})
}

// TestAPIAway: while the API is away pods run, and when it is back their
// statuses arrive, the newest only.
func TestAPIAway(t *testing.T) {
	a := newAgent(t)
	var away atomic.Bool
	var patches atomic.Int32
	away.Store(true)
	refused := make(chan struct{}, 100)
	a.api.PrependReactor("patch", "pods", func(ktesting.Action) (bool, apiruntime.Object, error) {
		if away.Load() {
			refused <- struct{}{}
			return true, nil, errors.New("the API is away")
		}
		patches.Add(1)
		return false, nil, nil
	})
	p := a.create("web")
	<-refused
	for !isRunning(a.current(p.UID)) {
		<-refused // each retry is a moment later
	}
	away.Store(false)
	a.await("web", isRunning)
	if n := patches.Load(); n != 1 {
		t.Errorf("%d patches told what one would have", n)
	}
}

func (a *agentUnderTest) current(uid types.UID) *v1.Pod {
	p, _ := a.m.Get(uid)
	return p
}

// TestPatchesPerPod: a pod that comes up costs one status write.
func TestPatchesPerPod(t *testing.T) {
	a := newAgent(t)
	p := a.create("web")
	a.await("web", isRunning)
	n := 0
	for _, act := range a.api.Actions() {
		if act.GetVerb() == "patch" {
			n++
		}
	}
	if n > 2 {
		t.Errorf("%d patches from bind to Running, at most 2 are allowed", n)
	}
	if got := a.current(p.UID); got.Status.ContainerStatuses[0].State.Running == nil {
		t.Errorf("the manager's view lags: %+v", got.Status)
	}
}

// TestKill: a pod the node must get rid of ends as told, and says so.
func TestKill(t *testing.T) {
	a := newAgent(t)
	p := a.create("web")
	a.await("web", isRunning)
	done := a.m.Kill(p.UID, Kill{Phase: v1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory. "})
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the kill is never over")
	}
	a.await("web", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted" })
}

// TestKillNow: what does not heed its stop signal is gone at once when there
// is no time left, whatever it was promised.
func TestKillNow(t *testing.T) {
	a := newAgent(t, func(rt *fake.Runtime) { rt.IgnoresStop = map[string]bool{"app": true} })
	p := a.create("web")
	a.await("web", isRunning)
	hour := int64(3600)
	done := a.m.Kill(p.UID, Kill{Grace: &hour, Phase: v1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory. "})
	a.m.Kill(p.UID, Kill{Now: true})
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the kill is never over")
	}
	a.await("web", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted" })
}

// TestReported: who waits for a pod to be reported waits for the API, and finds
// the end there.
func TestReported(t *testing.T) {
	a := newAgent(t)
	var away atomic.Bool
	refused := make(chan struct{}, 100)
	a.api.PrependReactor("patch", "pods", func(ktesting.Action) (bool, apiruntime.Object, error) {
		if away.Load() {
			refused <- struct{}{}
			return true, nil, errors.New("the API is away")
		}
		return false, nil, nil
	})
	p := a.create("web")
	a.await("web", isRunning)
	away.Store(true)
	reported := a.m.Reported(p.UID)
	<-a.m.Kill(p.UID, Kill{Phase: v1.PodFailed, Reason: "Terminated", Message: "The machine goes down."})
	for range 2 {
		<-refused
	}
	if closed(reported) {
		t.Error("reported to an API that is away")
	}
	away.Store(false)
	select {
	case <-reported:
	case <-time.After(patience):
		t.Fatal("the end is never reported")
	}
	held, err := a.api.CoreV1().Pods("default").Get(a.ctx, "web", metav1.GetOptions{})
	if err != nil || held.Status.Phase != v1.PodFailed || held.Status.Reason != "Terminated" {
		t.Errorf("the API holds %+v, %v", held.Status, err)
	}
	if a.m.Reported("nobody") != nil {
		t.Error("a pod that is not there will end")
	}
}

// TestMetrics: what dashboards read is there once a pod runs.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	a, stop := startAgent(t, func(c *Config, _ *fake.Runtime) { c.Metrics = registry })
	defer stop()
	a.create("web")
	a.await("web", isRunning)
	got, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range got {
		names[f.GetName()] = true
	}
	for _, want := range []string{
		"kubelet_running_pods", "kubelet_running_containers", "kubelet_desired_pods", "kubelet_active_pods", "kubelet_mirror_pods",
		"kubelet_working_pods",
		"kubelet_pod_start_duration_seconds", "kubelet_pod_start_sli_duration_seconds", "kubelet_pod_start_total_duration_seconds",
		"kubelet_pod_worker_duration_seconds", "kubelet_pod_status_sync_duration_seconds", "kubelet_run_podsandbox_duration_seconds",
		"kubelet_started_pods_total", "kubelet_started_containers_total", "kubelet_orphaned_runtime_pods_total",
	} {
		if !names[want] {
			t.Errorf("no metric %s", want)
		}
	}
}

// TestMarkOfTheNodeController: while its node is not ready, a pod that someone
// else took out of service stays out; the agent's own word is not held back, and
// as soon as the node is ready the pod is back.
func TestMarkOfTheNodeController(t *testing.T) {
	says := func(s v1.ConditionStatus, reason string) v1.PodStatus {
		return v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.ContainersReady, Status: v1.ConditionTrue},
			{Type: v1.PodReady, Status: s, Reason: reason}}}
	}
	up, marked, failing := says(v1.ConditionTrue, ""), says(v1.ConditionFalse, ""), says(v1.ConditionFalse, "ContainersNotReady")
	for _, c := range []struct {
		what       string
		base, want v1.PodStatus
		notReady   bool
		patched    bool
	}{
		{"a mark on a node that is not ready", marked, up, true, false},
		{"a mark on a node that is ready again", marked, up, false, true},
		{"a pod that gets ready on a node that is not", failing, up, true, true},
		{"a pod that fails while it is marked", marked, failing, true, true},
		{"a pod that fails on a node that is not ready", up, failing, true, true},
	} {
		p := publisher{target: "u", base: c.base}
		now := time.Now()
		body, again, err := p.next(heed(p.base, c.want, Node{NotReady: c.notReady}), now)
		if err != nil || (body != nil || !again.IsZero()) != c.patched {
			t.Errorf("%s: patch %s, again at %v, %v", c.what, body, again, err)
		}
	}
	if again := heed(marked, up, Node{NotReady: true}); ready(&up) == ready(&again) {
		t.Error("the plan itself was changed")
	}
}

// TestStatusOfAPodThatWasReplaced: every answer that means that another pod has
// the name ends the writing; an answer that means anything else does not.
func TestStatusOfAPodThatWasReplaced(t *testing.T) {
	invalid := func(f string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", f), "u",
			"field is immutable")})
	}
	for _, c := range []struct {
		err  error
		gone bool
	}{
		{invalid("uid"), true},
		{apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("Precondition failed")), true},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p"), true},
		{invalid("labels"), false},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
		p := publisher{target: "u", busy: true}
		p.take(spec{Pod: pod}, nil, []patched{{target: "u", err: c.err}}, time.Now())
		if p.gone != c.gone {
			t.Errorf("after %v: gone is %v", c.err, p.gone)
		}
	}
}
