package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/runtime/fake"
	"github.com/berth-dev/berth/internal/journal"
)

// epoch is when every test world begins.
var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fixture is one pod on a fake node, stepped by hand: Next decides, the real
// effects run against the fake runtime, and nothing happens between steps.
type fixture struct {
	t       testing.TB
	now     time.Time
	rt      *fake.Runtime
	watcher *runtime.Watcher
	m       *Manager
	spec    spec
	obs     observed
	plan    plan
	events  []string
	// hold keeps actions of a kind in flight instead of performing them.
	hold   map[kind]bool
	held   []action
	probes map[string]Probe // by container name
	hooks  func(Hook) error
	// mounted and cgroup are the node's state, which outlives the agent.
	mounted, cgroup bool
	deleted         bool // the API no longer has the pod
	api             v1.PodStatus
	verdict         verdict          // what the disk holds
	unheard         bool             // the API takes no status
	errors          map[string]error // by what a collaborator does
	reject          *Rejection
	log             []string
	fired           map[string]bool
}

func newFixture(t testing.TB) *fixture {
	w := &fixture{t: t, now: epoch, hold: map[kind]bool{}, probes: map[string]Probe{}, errors: map[string]error{}, fired: map[string]bool{}}
	w.rt = fake.New(func() time.Time { return w.now })
	w.watcher = runtime.NewWatcher(runtime.WatcherConfig{Service: w.rt, Notify: func(types.UID) {}, Log: slog.New(slog.DiscardHandler)})
	w.m = NewManager(Config{
		Service: w.rt, Runtime: w.watcher, RuntimeName: "fake",
		Providers: Providers{Volumes: w, Images: images{w}, Configs: configs{w}, Cgroups: cgroups{w}, Resizer: resizer{w}},
		Admitter:  admitter{w}, Hooks: hooks{w}, Node: func() Node { return Node{IPs: []string{"192.0.2.1"}} },
		Dirs: Dirs{Root: t.TempDir(), Logs: t.TempDir()}, Recorder: w, Journal: journal.Discard,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
	})
	return w
}

func (w *fixture) begin(pod *v1.Pod) {
	w.spec = spec{Pod: pod}
	w.obs = observed{memory: newMemory(pod.Status, w.now), RuntimeName: "fake", Messages: map[string]string{}}
}

// crash loses everything the agent knows but what the API, the runtime and the
// disk hold.
func (w *fixture) crash() {
	w.held, w.fired = nil, map[string]bool{}
	w.spec.Pod = w.spec.Pod.DeepCopy()
	w.spec.Pod.Status = w.api
	w.spec.Kill = nil
	w.obs.memory = newMemory(w.api, w.now)
	w.obs.Logged = w.m.loggedAttempts(w.spec.Pod.UID)
	w.obs.Allocation = w.m.loadAllocation(w.spec.Pod.UID)
	w.verdict = w.m.loadVerdict(w.spec.Pod.UID)
	w.verdict.restore(&w.spec, &w.obs.Last)
	w.watcher = runtime.NewWatcher(runtime.WatcherConfig{Service: w.rt, Notify: func(types.UID) {}, Log: slog.New(slog.DiscardHandler)})
	w.m.cfg.Runtime = w.watcher
}

// look refreshes the picture and plans.
func (w *fixture) look() plan {
	w.t.Helper()
	before := w.rt.Before
	w.rt.Before = nil
	if err := w.watcher.Relist(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.rt.Before = before
	w.obs.Runtime = w.watcher.Pod(w.spec.Pod.UID)
	w.obs.forget(w.obs.Runtime)
	w.obs.Node = w.m.cfg.Node()
	w.obs.Probes = map[string]Probe{}
	if w.obs.Runtime != nil {
		for _, c := range w.obs.Runtime.Containers {
			if p, ok := w.probes[c.Name]; ok && c.State == runtime.Running && w.obs.Runtime.Newest(c.Name) == c {
				w.obs.Probes[c.ID] = p
			}
		}
	}
	w.obs.Acked, w.obs.Deleted = w.api.Phase, w.deleted
	if !w.spec.Static {
		w.obs.merge(&w.api)
	}
	w.verdict = w.m.keepVerdict(w.spec.Pod.UID, w.verdict, verdictOf(w.spec, &w.obs.Last, w.obs.Acked, w.unheard))
	w.plan = next(w.obs.view(w.spec), &w.obs, w.now)
	return w.plan
}

// accept records the plan as begun and returns its actions.
func (w *fixture) accept() []action {
	for _, k := range w.plan.Cancel {
		w.obs.Done(result{Action: w.obs.InFlight[k], Canceled: true}, w.now)
		w.held = slices.DeleteFunc(w.held, func(a action) bool { return a.Key() == k })
	}
	w.obs.Accept(w.plan, w.now)
	for _, e := range w.plan.Events {
		w.fire(e)
	}
	return w.plan.Actions
}

// do performs one action and tells the memory.
func (w *fixture) do(a action) result {
	if a.Kind == Delete {
		w.deleted = true
		w.obs.Done(result{Action: a}, w.now)
		return result{Action: a}
	}
	r := w.m.effect(context.Background(), nil, w.obs.view(w.spec), a)
	r.Action = a
	w.obs.Done(r, w.now)
	return r
}

// settle steps until the plan wants nothing more now.
func (w *fixture) settle() {
	w.t.Helper()
	for range 200 {
		w.look()
		before := w.api.Phase
		w.publish()
		actions := w.accept()
		if len(actions) == 0 && len(w.plan.Cancel) == 0 && w.api.Phase == before {
			return
		}
		for _, a := range actions {
			if a.Event != nil {
				w.fire(*a.Event)
			}
			if w.hold[a.Kind] {
				w.held = append(slices.DeleteFunc(w.held, func(h action) bool { return h.Key() == a.Key() }), a)
				w.log = append(w.log, "  "+a.String()+" ...")
				continue
			}
			r := w.do(a)
			line := "  " + a.String()
			if r.Err != nil {
				line += " FAILED " + r.Err.Reason + ": " + r.Err.Message
			}
			w.log = append(w.log, line)
		}
	}
	w.t.Fatalf("the plan does not settle; it last wanted %v", w.plan.Actions)
}

// fire sends an event once per key, as the worker does.
func (w *fixture) fire(e event) {
	if e.Key == "" || !w.fired[e.Key] {
		w.fired[e.Key] = true
		w.m.event(w.spec.Pod, e)
	}
}

// publish is an API that takes every status at once, or none.
func (w *fixture) publish() {
	if !w.deleted && !w.unheard {
		w.api = mergedStatus(w.api, w.plan.Status)
	}
}

// summary is the status in one line.
func (w *fixture) summary() string {
	s := &w.plan.Status
	var b strings.Builder
	fmt.Fprintf(&b, "%s", s.Phase)
	if s.Reason != "" {
		fmt.Fprintf(&b, "(%s)", s.Reason)
	}
	for _, c := range s.Conditions {
		short := map[v1.PodConditionType]string{v1.PodReadyToStartContainers: "sandbox", v1.PodInitialized: "init",
			v1.PodReady: "ready"}[c.Type]
		if short != "" && c.Status == v1.ConditionTrue {
			b.WriteString(" " + short)
		}
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			fmt.Fprintf(&b, " %s(%s)", c.Type, c.Reason)
		}
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&b, " | %s %s", c.Name, stateText(c.State))
			if c.Ready {
				b.WriteString(" ready")
			}
			if c.RestartCount > 0 {
				fmt.Fprintf(&b, " restarts=%d", c.RestartCount)
			}
			if c.LastTerminationState.Terminated != nil {
				fmt.Fprintf(&b, " last=%s", stateText(c.LastTerminationState))
			}
		}
	}
	if !w.plan.WakeAt.IsZero() {
		fmt.Fprintf(&b, " | wake in %s", w.plan.WakeAt.Sub(w.now).Round(time.Millisecond))
	}
	if w.plan.Done {
		b.WriteString(" | done")
	}
	return b.String()
}

func stateText(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "nothing"
}

// The collaborators of the fake node.

func (w *fixture) Mount(context.Context, *v1.Pod) error {
	if err := w.errors["mount"]; err != nil {
		return err
	}
	w.mounted = true
	return nil
}

func (w *fixture) Unmount(context.Context, types.UID) error {
	if err := w.errors["unmount"]; err != nil {
		return err
	}
	w.mounted = false
	return nil
}

func (w *fixture) Update(*v1.Pod) {}

type images struct{ w *fixture }

func (i images) Ensure(_ context.Context, _ *v1.Pod, c *v1.Container) (string, error) {
	if err := i.w.errors["pull "+c.Name]; err != nil {
		return "", err
	}
	return c.Image, nil
}

type cgroups struct{ w *fixture }

func (c cgroups) Ensure(*v1.Pod) error   { c.w.cgroup = true; return c.w.errors["cgroup"] }
func (c cgroups) Remove(types.UID) error { c.w.cgroup = false; return nil }

type admitter struct{ w *fixture }

func (a admitter) Admit(_ context.Context, _ *v1.Pod, adopted bool) *Rejection {
	if adopted {
		return nil
	}
	return a.w.reject
}
func (admitter) Forget(types.UID)                             {}
func (admitter) Settled(types.UID)                            {}
func (a admitter) Resize(context.Context, *v1.Pod) *Rejection { return a.w.reject }

type resizer struct{ w *fixture }

func (r resizer) Resize(_ context.Context, p *v1.Pod, running map[string]string) error {
	r.w.log = append(r.w.log, fmt.Sprintf("  enforcing %s on %v", p.Spec.Containers[0].Resources.Limits.Memory(), running))
	return r.w.errors["resize"]
}

type hooks struct{ w *fixture }

func (h hooks) Run(_ context.Context, in Hook) error {
	if h.w.hooks != nil {
		return h.w.hooks(in)
	}
	return h.w.errors["hook "+in.Container.Name]
}

type configs struct{ w *fixture }

func (c configs) Sandbox(_ context.Context, pod *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, string, error) {
	mode := runtimeapi.NamespaceMode_POD
	if pod.Spec.HostNetwork {
		mode = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels: map[string]string{
			kubelettypes.KubernetesPodNameLabel: pod.Name, kubelettypes.KubernetesPodNamespaceLabel: pod.Namespace,
			kubelettypes.KubernetesPodUIDLabel: string(pod.UID),
		},
		LogDirectory: c.w.m.cfg.Dirs.Logs + "/" + pod.Namespace + "_" + pod.Name + "_" + string(pod.UID),
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: mode}}},
	}, "", c.w.errors["sandbox config"]
}

func (c configs) Container(ctx context.Context, in StartInput) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error) {
	if err := c.w.errors["config "+in.Container.Name]; err != nil {
		return nil, nil, err
	}
	if !c.w.mounted {
		return nil, nil, errors.New("INVARIANT BROKEN: container without its volumes")
	}
	sb, _, err := c.Sandbox(ctx, in.Pod, 0)
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: in.Container.Name, Attempt: in.Attempt},
		Image:    &runtimeapi.ImageSpec{Image: in.ImageRef},
		LogPath:  container.LogPath(in.Container.Name, in.Attempt),
		Annotations: map[string]string{
			runtime.AnnotationHash: container.Hash(in.Container), runtime.AnnotationRestartCount: fmt.Sprint(in.Attempt),
		},
		Labels: map[string]string{
			kubelettypes.KubernetesPodNameLabel: in.Pod.Name, kubelettypes.KubernetesPodNamespaceLabel: in.Pod.Namespace,
			kubelettypes.KubernetesPodUIDLabel: string(in.Pod.UID), kubelettypes.KubernetesContainerNameLabel: in.Container.Name,
		},
	}, sb, err
}

// Event and its sisters make the world its own event recorder.

func (w *fixture) Event(_ apiruntime.Object, kind, reason, message string) {
	w.events = append(w.events, kind+" "+reason+": "+message)
	w.log = append(w.log, "  event "+kind+" "+reason+": "+message)
}

func (w *fixture) Eventf(o apiruntime.Object, kind, reason, format string, args ...any) {
	w.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (w *fixture) AnnotatedEventf(o apiruntime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	w.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func testPod(policy v1.RestartPolicy, names ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1", Generation: 1},
		Spec: v1.PodSpec{RestartPolicy: policy}}
	for _, n := range names {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: n, Image: "img"})
	}
	return pod
}
