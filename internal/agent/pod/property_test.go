package pod

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	seed  = flag.Int64("seed", 0, "run only the history of this seed")
	lives = flag.Int("lives", 400, "how many random histories to live")
)

// TestRandomLives lives pods through random histories: actions end in any
// order, containers exit, sandboxes die, runtime calls fail, the API is away,
// the clock moves, and the agent dies at every kind of moment, in the middle of
// actions too. What must hold always is checked after every step; when the
// trouble stops, the pod must come to rest as its spec says, and leave nothing
// behind when it is deleted.
func TestRandomLives(t *testing.T) {
	from, to := int64(1), int64(*lives)
	if *seed != 0 {
		from, to = *seed, *seed
	}
	for s := from; s <= to; s++ {
		l := newLife(t, s)
		l.live()
		if t.Failed() {
			t.Fatalf("history of -seed %d:\n%s", s, strings.Join(l.story, "\n"))
		}
	}
}

// life is one random history.
type life struct {
	*fixture
	rnd     *rand.Rand
	seed    int64
	pending []action
	story   []string
	phase   v1.PodPhase // the furthest ever published
	faults  bool
}

func newLife(t *testing.T, s int64) *life {
	l := &life{fixture: newFixture(t), rnd: rand.New(rand.NewSource(s)), seed: s}
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	pod := testPod(policies[l.rnd.Intn(3)], "a", "b"[:l.rnd.Intn(2)])
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(c v1.Container) bool { return c.Name == "" })
	always := v1.ContainerRestartPolicyAlways
	for i := range l.rnd.Intn(3) {
		c := v1.Container{Name: fmt.Sprintf("i%d", i), Image: "img"}
		if l.rnd.Intn(2) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if l.rnd.Intn(3) == 0 {
		h := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}
		pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: h, PostStart: h}
	}
	if l.rnd.Intn(2) == 0 {
		pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory,
			RestartPolicy: v1.RestartContainer}}
	}
	if l.rnd.Intn(3) == 0 {
		pod.Spec.Containers[0].RestartPolicy = &always
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
			Action:    v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{2}},
		}}
	}
	l.begin(pod)
	l.rt.Run = func(cfg *runtimeapi.ContainerConfig) (int32, bool) {
		// Plain init containers end by themselves; some fail at first.
		name := cfg.GetMetadata().GetName()
		if m := l.find(name); m == nil || m.role != initContainer {
			return 0, false
		}
		return int32(l.rnd.Intn(2)), l.rnd.Intn(2) == 0
	}
	l.rt.Before = func(_ context.Context, call, _ string) error {
		if l.faults && l.rnd.Intn(12) == 0 {
			return status.Error(codes.Unavailable, call+" fails")
		}
		return nil
	}
	l.logf("a pod with policy %s, init %d, main %d", pod.Spec.RestartPolicy, len(pod.Spec.InitContainers), len(pod.Spec.Containers))
	return l
}

func (l *life) find(name string) *containerState {
	for _, m := range allContainers(l.spec.Pod, nil, nil) {
		if m.c.Name == name {
			return m
		}
	}
	return nil
}

func (l *life) logf(format string, args ...any) {
	l.story = append(l.story, fmt.Sprintf(format, args...))
}

// plan looks and begins what is asked for.
func (l *life) planNow() {
	l.look()
	if l.rnd.Intn(2) == 0 && !l.deleted {
		l.publish()
	}
	for _, k := range l.plan.Cancel {
		l.pending = slices.DeleteFunc(l.pending, func(a action) bool {
			if a.Key() == k && l.rnd.Intn(2) == 0 {
				// Giving up came too late: it happened all the same.
				l.m.effect(context.Background(), nil, l.spec, a)
				l.logf("effect of what was given up: %s", a)
			}
			return a.Key() == k
		})
	}
	for _, a := range l.accept() {
		l.pending = slices.DeleteFunc(l.pending, func(b action) bool { return b.Key() == a.Key() })
		l.pending = append(l.pending, a)
		l.logf("plan: %s", a)
	}
}

// perform ends one pending action.
func (l *life) perform() {
	if len(l.pending) == 0 {
		return
	}
	i := l.rnd.Intn(len(l.pending))
	a := l.pending[i]
	l.pending = slices.Delete(l.pending, i, i+1)
	r := l.do(a)
	if r.Err != nil && strings.Contains(r.Err.Message, "INVARIANT") {
		l.t.Errorf("%s: %s", a, r.Err.Message)
	}
	l.logf("done: %s %v", a, r.Err)
}

// die kills the agent, now and then in the middle of an action whose effect
// happens all the same.
func (l *life) die() {
	for _, a := range l.pending {
		if l.rnd.Intn(2) == 0 && a.Kind != Delete {
			l.m.effect(context.Background(), nil, l.spec, a)
			l.logf("effect without result: %s", a)
		}
	}
	l.pending = nil
	l.crash()
	l.logf("the agent dies")
}

func (l *life) live() {
	l.faults = true
	for range 120 {
		switch n := l.rnd.Intn(100); {
		case n < 40:
			l.planNow()
		case n < 75:
			l.perform()
		case n < 82:
			names := []string{"a", "b", "i0", "i1"}
			name, code := names[l.rnd.Intn(4)], int32(l.rnd.Intn(3))
			if l.rt.ExitByName("u1", name, code, "Error") {
				l.logf("%s exits with %d", name, code)
			}
		case n < 84:
			if l.rt.LoseSandbox("u1") {
				l.logf("the sandbox dies")
			}
		case n < 87:
			l.die()
		case n < 93:
			l.now = l.now.Add(time.Duration(l.rnd.Intn(15)) * time.Second)
		case n < 97:
			if len(l.plan.Status.Conditions) > 0 {
				l.publish()
			}
		case n < 99:
			l.ask()
		default:
			l.remove(int64(l.rnd.Intn(30)))
		}
		l.check()
		if l.t.Failed() {
			return
		}
	}
	l.rest()
	if l.t.Failed() {
		return
	}
	l.remove(1)
	l.come()
	if l.spec.Removed = true; !l.t.Failed() {
		l.come()
		l.nothingLeft()
	}
}

// ask changes what the first container should get, and now and then what the
// node and the kernel say to it.
func (l *life) ask() {
	l.spec.Pod = l.spec.Pod.DeepCopy()
	l.spec.Pod.Generation++
	want := *apiresource.NewQuantity(int64(1+l.rnd.Intn(4))<<20, apiresource.BinarySI)
	l.spec.Pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: want}
	l.reject = nil
	switch l.rnd.Intn(4) {
	case 0:
		l.reject = &Rejection{Reason: "OutOfmemory", Message: "no room"}
	case 1:
		l.reject = &Rejection{Reason: v1.PodReasonInfeasible, Message: "never"}
	}
	delete(l.errors, "resize")
	if l.rnd.Intn(4) == 0 {
		l.errors["resize"] = errors.New("the kernel refuses")
	}
	l.logf("its first container should get %s; the node says %v, the kernel %v", want.String(), l.reject, l.errors["resize"])
}

func (l *life) remove(grace int64) {
	if l.spec.Pod.DeletionTimestamp != nil && *l.spec.Pod.DeletionGracePeriodSeconds <= grace {
		return
	}
	l.spec.Pod = l.spec.Pod.DeepCopy()
	at := metav1.NewTime(l.now.Add(time.Duration(grace) * time.Second))
	l.spec.Pod.DeletionTimestamp, l.spec.Pod.DeletionGracePeriodSeconds = &at, &grace
	l.logf("deleted with grace %d", grace)
}

// check is what must hold at every moment.
func (l *life) check() {
	ctx := context.Background()
	before := l.rt.Before
	l.rt.Before = nil
	defer func() { l.rt.Before = before }()
	sandboxes, _ := l.rt.ListPodSandbox(ctx, nil)
	ready := 0
	for _, b := range sandboxes {
		if b.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	if ready > 1 {
		l.t.Errorf("there are %d sandboxes", ready)
	}
	containers, _ := l.rt.ListContainers(ctx, nil)
	run := map[string]int{}
	for _, c := range containers {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			run[c.GetMetadata().GetName()]++
		}
	}
	for name, n := range run {
		if n > 1 {
			l.t.Errorf("container %s runs %d times", name, n)
		}
	}
	if len(run) > 0 && !l.mounted {
		l.t.Errorf("%v run without volumes", run)
	}
	rank := map[v1.PodPhase]int{"": 0, v1.PodPending: 1, v1.PodRunning: 2, v1.PodFailed: 3, v1.PodSucceeded: 3}
	if now := l.api.Phase; rank[now] < rank[l.phase] || terminal(l.phase) && now != l.phase {
		l.t.Errorf("the phase went from %s back to %s", l.phase, now)
	}
	l.phase = l.api.Phase
	if terminal(l.api.Phase) && len(run) > 0 {
		l.t.Errorf("the pod is %s and %v run", l.api.Phase, run)
	}
	if l.deleted && (len(run) > 0 || l.mounted || l.cgroup) {
		l.t.Errorf("the pod is gone from the API, but %v run, mounted=%v cgroup=%v", run, l.mounted, l.cgroup)
	}
}

// come lets everything end that is under way, without trouble, moving the
// clock only to where the plan wants to wake.
func (l *life) come() {
	l.t.Helper()
	l.faults = false
	for range 600 {
		l.planNow()
		if !l.deleted {
			l.publish()
		}
		l.check()
		if l.t.Failed() {
			return
		}
		if len(l.pending) > 0 {
			l.perform()
			continue
		}
		l.look()
		switch {
		case len(l.plan.Actions) > 0:
		case l.plan.Acked() != l.api.Phase:
		case l.plan.WakeAt.IsZero():
			return
		default:
			l.now = l.plan.WakeAt
		}
	}
	l.t.Errorf("the pod does not come to rest: %s, waiting for %v", l.summary(), l.plan.Actions)
}

// Acked is the phase the plan's status has.
func (p plan) Acked() v1.PodPhase { return p.Status.Phase }

// rest checks that an undisturbed pod is where its spec wants it.
func (l *life) rest() {
	l.rt.Run = func(cfg *runtimeapi.ContainerConfig) (int32, bool) {
		m := l.find(cfg.GetMetadata().GetName())
		return 0, m != nil && m.role == initContainer
	}
	l.reject = nil
	delete(l.errors, "resize")
	l.obs.retryNow(l.now)
	// Whatever still runs of the plain init containers ends well.
	for range 20 {
		l.come()
		again := false
		for _, c := range l.spec.Pod.Spec.InitContainers {
			if m := l.find(c.Name); m.role == initContainer && l.rt.ExitByName("u1", c.Name, 0, "Completed") {
				again = true
			}
		}
		if !again {
			break
		}
	}
	if l.t.Failed() || l.plan.Terminating {
		return
	}
	if !sameResources(l.obs.Allocation.Resources, resourcesOf(l.spec.Pod)) || l.obs.Allocation.Actuating {
		l.t.Errorf("at rest the pod wants %v and was promised %+v", resourcesOf(l.spec.Pod), l.obs.Allocation)
	}
	for _, m := range allContainers(l.spec.Pod, l.obs.Runtime, currentSandbox(l.spec.Pod, l.obs.Runtime)) {
		switch {
		case m.role == initContainer:
		case alive(m.cur):
		case m.role == regularContainer && exited(m.last) && !restartable(l.spec.Pod, m, m.last):
		case m.role == regularContainer && m.last == nil && lastRan(&l.obs.Last, m.c.Name) &&
			l.spec.Pod.Spec.RestartPolicy == v1.RestartPolicyNever:
		default:
			l.t.Errorf("at rest container %s does not run: %s", m.c.Name, l.summary())
		}
	}
}

func (l *life) nothingLeft() {
	if !l.deleted || !l.plan.Done || l.mounted || l.cgroup || len(l.watcher.Pods()) > 0 {
		l.t.Errorf("after deletion: deleted=%v done=%v mounted=%v cgroup=%v runtime=%v", l.deleted, l.plan.Done, l.mounted, l.cgroup,
			l.watcher.Pods())
	}
}
