package pod

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
)

// worker owns one pod: it alone plans for it and performs what is planned. Its
// loop never waits for an action; each runs in a goroutine of its own and
// reports back through the inbox.
type worker struct {
	m    *Manager
	uid  types.UID
	wake chan struct{}

	mu     sync.Mutex
	spec   spec
	mirror *v1.Pod // of a static pod, as the API holds it
	// mirrored: there was one when the last source released the pod.
	mirrored bool
	// leaving: the pod ends since no source has it. What a source asks for
	// from then on is another life of it, which begins when this one is over.
	leaving bool
	again   *spec
	inbox   []result
	patches []patched

	// current is the pod with the status planned last. quiet is closed when
	// nothing of it runs any more, reported when also its volumes are unmounted
	// and the API knows how it ended.
	current  atomic.Pointer[v1.Pod]
	quiet    chan struct{}
	reported chan struct{}
	retry    atomic.Bool
	// deferred: the pod waits for room for other resources.
	deferred atomic.Bool
	ending   atomic.Bool

	loopState
	wg sync.WaitGroup
}

// loopState is what the worker's loop alone reads and writes.
type loopState struct {
	obs     observed
	flights map[actionKey]*flight
	fired   map[string]bool // keys of events sent
	updated *v1.Pod         // the definition that the volumes got last
	before  v1.PodPhase     // of the last plan
	seen    time.Time       // when the pod was met
	isNew   bool            // no agent has started anything of it yet
	cameUp  bool
	pulling time.Duration // spent on images so far
	pub     publisher
}

// flight is an action that is being performed.
type flight struct {
	cancel   context.CancelCauseFunc
	canceled atomic.Bool
}

// errUnwanted is why the context of an action ends that the plan gave up.
var errUnwanted = errors.New("no longer wanted")

func newWorker(m *Manager, spec spec) *worker {
	w := &worker{
		m: m, uid: spec.Pod.UID, wake: make(chan struct{}, 1), spec: spec, quiet: make(chan struct{}), reported: make(chan struct{}),
		loopState: loopState{seen: m.cfg.Now(), flights: map[actionKey]*flight{}, fired: map[string]bool{}},
	}
	w.current.Store(spec.Pod)
	return w
}

// enqueue makes the loop look again.
func (w *worker) enqueue() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update changes what the world asks of the pod.
func (w *worker) update(f func(*spec)) {
	w.mu.Lock()
	f(&w.spec)
	w.mu.Unlock()
	w.enqueue()
}

func (w *worker) deliver(r result) {
	w.mu.Lock()
	w.inbox = append(w.inbox, r)
	w.mu.Unlock()
	w.enqueue()
}

// run is the worker's life; it returns when nothing is left of the pod or ctx
// ends.
func (w *worker) run(ctx context.Context) {
	defer w.wg.Wait()
	last, known := w.firstStatus()
	w.obs.memory = newMemory(last, w.m.cfg.Now())
	if !known {
		w.obs.trustRunning(w.m.cfg.Runtime.Pod(w.uid))
	}
	w.obs.Logged = w.m.loggedAttempts(w.uid)
	w.obs.Allocation = w.m.loadAllocation(w.uid)
	w.obs.RuntimeName = w.m.cfg.RuntimeName
	w.obs.Messages = map[string]string{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	w.isNew = w.obs.Last.StartTime == nil && w.m.cfg.Runtime.Pod(w.uid).Empty()
	for first := true; ctx.Err() == nil; first = false {
		now := w.m.cfg.Now()
		if first {
			w.m.metrics.workerStart.Observe(now.Sub(w.seen).Seconds())
		}
		spec := w.observe(now)
		plan := next(spec, &w.obs, now)
		w.perform(ctx, spec, plan, now)
		wakeAt := earliest(plan.WakeAt, w.publish(ctx, spec, plan, now))
		w.reportEnd(&plan)
		w.m.metrics.workerRounds.WithLabelValues(roundType(first, &plan)).Observe(w.m.cfg.Now().Sub(now).Seconds())
		if plan.Done && !w.pub.busy {
			return
		}
		if !wakeAt.IsZero() {
			timer.Reset(max(wakeAt.Sub(now), time.Millisecond))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// roundType is what metrics call one look at a pod.
func roundType(first bool, plan *plan) string {
	switch {
	case plan.Terminating && terminal(plan.Status.Phase):
		return "terminated"
	case plan.Terminating:
		return "terminating"
	case first:
		return "create"
	}
	return "sync"
}

// firstStatus is the status the API holds when the worker begins. Of a static
// pod nothing is known before its mirror was seen.
func (w *worker) firstStatus() (status v1.PodStatus, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.spec.Static {
		if w.mirror == nil {
			return v1.PodStatus{}, false
		}
		return w.mirror.Status, true
	}
	return w.spec.Pod.Status, true
}

// observe takes in everything that arrived since the last round.
func (w *worker) observe(now time.Time) spec {
	w.mu.Lock()
	w.leaving = w.leaving || w.spec.Removed
	spec, mirror := w.spec, w.mirror
	inbox, patches := w.inbox, w.patches
	w.inbox, w.patches = nil, nil
	w.mu.Unlock()

	for _, r := range inbox {
		if f := w.flights[r.Action.Key()]; f != nil && f == r.flight {
			delete(w.flights, r.Action.Key())
			f.cancel(nil)
			if r.Action.Kind == Pull {
				w.pulling += r.took
			}
			w.obs.Done(r, now)
			w.reportFailure(spec.Pod, r, now)
		}
	}
	if w.retry.Swap(false) {
		w.obs.retryNow(now)
	}
	w.obs.Runtime = w.m.cfg.Runtime.Pod(w.uid)
	w.obs.forget(w.obs.Runtime)
	w.obs.Node = w.m.cfg.Node()
	w.obs.Probes = w.m.cfg.Probes.Results(w.uid)
	if w.m.cfg.Devices != nil {
		w.obs.Devices = w.m.cfg.Devices(spec.Pod)
	}
	w.readMessages(len(spec.Pod.Spec.Containers) + len(spec.Pod.Spec.InitContainers))
	w.pub.take(spec, mirror, patches, now)
	if w.m.cfg.Client == nil {
		w.obs.Acked, w.obs.Deleted = w.obs.Last.Phase, spec.Removed
	} else {
		w.obs.Acked = w.pub.base.Phase
		if !spec.Static {
			w.obs.merge(&w.pub.base)
		}
		w.obs.Deleted = w.obs.Deleted || w.pub.gone
	}
	if w.obs.VolumesReady && !sameToVolumes(w.updated, spec.Pod) {
		w.updated = spec.Pod
		w.m.cfg.Volumes.Update(spec.Pod)
	}
	return w.obs.view(spec)
}

// sameToVolumes tells that nothing changed between two definitions that volumes
// are made of. Each status written comes back as a definition of its own: a pod
// that starts must not collect the contents of its volumes again for each.
func sameToVolumes(was, is *v1.Pod) bool {
	return was == is || was != nil && is.Generation != 0 && was.Generation == is.Generation &&
		maps.Equal(was.Labels, is.Labels) && maps.Equal(was.Annotations, is.Annotations)
}

// readMessages fetches the termination messages of containers that have ended
// since the last round, and drops those of containers that are gone.
func (w *worker) readMessages(containers int) {
	if w.obs.Runtime == nil {
		return
	}
	known := map[string]bool{}
	for _, c := range w.obs.Runtime.Containers {
		known[c.ID] = true
		if _, have := w.obs.Messages[c.ID]; c.State == runtime.Exited && !have {
			w.obs.Messages[c.ID] = terminationMessage(c, containers)
		}
	}
	maps.DeleteFunc(w.obs.Messages, func(id string, _ string) bool { return !known[id] })
}

// perform begins the plan's actions and tells the world about them.
func (w *worker) perform(ctx context.Context, spec spec, plan plan, now time.Time) {
	for _, k := range plan.Cancel {
		if f := w.flights[k]; f != nil {
			f.canceled.Store(true)
			f.cancel(errUnwanted)
		}
	}
	w.reportStatus(spec.Pod, &plan, now)
	w.obs.Accept(plan, now)
	for _, e := range plan.Events {
		if !w.fire(spec.Pod, e) {
			continue
		}
		decision := "holding back container " + e.Container
		if e.Container == "" {
			decision = "reporting " + e.Reason
		}
		w.m.record(spec.Pod, now, decision, fact("message", e.Message))
	}
	for _, a := range plan.Actions {
		if old := w.flights[a.Key()]; old != nil {
			old.canceled.Store(true) // replaced by one with less time
			old.cancel(errUnwanted)
		}
		if a.Event != nil {
			w.fire(spec.Pod, *a.Event)
		}
		w.m.journal(spec.Pod, a, now)
		actx, cancel := context.WithCancelCause(ctx)
		f := &flight{cancel: cancel}
		w.flights[a.Key()] = f
		w.wg.Go(func() {
			began := w.m.cfg.Now()
			r := w.m.effect(actx, w, spec, a)
			r.took = w.m.cfg.Now().Sub(began)
			w.m.metrics.actions.WithLabelValues(string(a.Kind)).Observe(r.took.Seconds())
			r.Action, r.flight = a, f
			r.Canceled = r.Err != nil && f.canceled.Load()
			w.deliver(r)
		})
	}
	_, deferred := w.obs.Failed[actionKey{Kind: Allocate}]
	if w.deferred.Swap(deferred) && !deferred {
		w.m.cfg.Admitter.Settled(w.uid)
	}
	if terminal(plan.Status.Phase) && !terminal(w.before) {
		w.m.makeRoom()
	}
	w.before = plan.Status.Phase
	w.ending.Store(plan.Terminating)
	w.began(spec.Pod, &plan, now)
	pod := spec.Pod.DeepCopy()
	pod.Status = mergedStatus(spec.Pod.Status, plan.Status)
	w.current.Store(pod)
	w.m.cfg.Probes.Sync(w.uid, w.targets(pod, plan))
}

// reportEnd tells those who wait for the pod's end how far it is.
func (w *worker) reportEnd(plan *plan) {
	if (plan.Ended || plan.Done) && !closed(w.quiet) {
		close(w.quiet)
	}
	ended := plan.Terminating && terminal(plan.Status.Phase)
	// Without a target there is no one to tell.
	statusReported := terminal(w.obs.Acked) || w.pub.target == ""
	if (ended && w.obs.Unmounted && statusReported || plan.Done) && !closed(w.reported) {
		close(w.reported)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// targets lists the running containers for the prober.
func (w *worker) targets(pod *v1.Pod, plan plan) []Target {
	held := w.obs.Runtime
	if held == nil {
		return nil
	}
	cur := currentSandbox(pod, held)
	var out []Target
	for _, m := range allContainers(pod, held, cur) {
		if m.cur == nil || m.cur.State != runtime.Running || !hasProbes(m.c) {
			continue
		}
		t := Target{Pod: pod, Container: m.c, ContainerID: m.cur.ID, PodIP: pod.Status.PodIP, StartedAt: m.cur.StartedAt,
			Ending: plan.Terminating}
		if s := lastStatus(&plan.Status, m.c.Name); s != nil {
			t.Before = Probe{Started: s.Started != nil && *s.Started, Ready: s.Ready}
		}
		out = append(out, t)
	}
	return out
}

func hasProbes(c *v1.Container) bool {
	return c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil
}

// fire sends an event, once per key, and tells whether it did.
func (w *worker) fire(pod *v1.Pod, e event) bool {
	if e.Key != "" {
		if w.fired[e.Key] {
			return false
		}
		if len(w.fired) > 256 {
			clear(w.fired)
		}
		w.fired[e.Key] = true
	}
	w.m.event(pod, e)
	return true
}

// reportFailure writes down why an action did not work and when it is tried again.
func (w *worker) reportFailure(pod *v1.Pod, r result, now time.Time) {
	if r.Err == nil || r.Canceled {
		return
	}
	f := w.obs.Failed[r.Action.Key()]
	w.m.record(pod, now, "failed "+r.Action.sentence(), fact("reason", f.Reason), fact("message", f.Message),
		fact("in a row", strconv.Itoa(f.Count)), fact("next try in", f.RetryAt.Sub(now).Round(time.Millisecond).String()))
}

// reportEnds writes down how containers ended since the last look.
func (w *worker) reportEnds(pod *v1.Pod, was, is *v1.PodStatus, now time.Time) {
	for _, list := range [][]v1.ContainerStatus{is.InitContainerStatuses, is.ContainerStatuses, is.EphemeralContainerStatuses} {
		for i := range list {
			c, before := &list[i], lastStatus(was, list[i].Name)
			ended := c.State.Terminated
			if ended == nil && c.State.Waiting != nil {
				ended = c.LastTerminationState.Terminated
			}
			if ended == nil || before == nil || before.State.Running == nil || ended.ContainerID != before.ContainerID {
				continue
			}
			because := []journal.Fact{fact("exit code", strconv.Itoa(int(ended.ExitCode))), fact("reason", ended.Reason)}
			if ended.Message != "" {
				because = append(because, fact("message", ended.Message))
			}
			w.m.metrics.terminated.WithLabelValues(containerType(pod, c.Name), strconv.Itoa(int(ended.ExitCode)), ended.Reason).Inc()
			ran := ended.FinishedAt.Sub(ended.StartedAt.Time).String()
			w.m.record(pod, now, "container "+c.Name+" ended", append(because, fact("ran for", ran))...)
		}
	}
}

// reportStatus writes down a change of phase or readiness.
func (w *worker) reportStatus(pod *v1.Pod, plan *plan, now time.Time) {
	was, is := &w.obs.Last, &plan.Status
	w.reportEnds(pod, was, is, now)
	if was.Phase != is.Phase {
		because := []journal.Fact{fact("before", string(was.Phase))}
		if is.Reason != "" {
			because = append(because, fact("reason", is.Reason), fact("message", is.Message))
		}
		w.m.record(pod, now, "became "+string(is.Phase), append(because, plan.Because...)...)
	}
	if ready(was) != ready(is) {
		verdict := map[bool]string{true: "became ready", false: "became unready"}[ready(is)]
		var because []journal.Fact
		for _, c := range is.Conditions {
			if c.Type == v1.PodReady && c.Message != "" {
				because = append(because, fact(c.Reason, c.Message))
			}
		}
		w.m.record(pod, now, verdict, because...)
	}
}

// journal appends an action to the decision journal.
func (m *Manager) journal(pod *v1.Pod, a action, now time.Time) {
	m.record(pod, now, a.sentence(), a.Because...)
	m.cfg.Log.Debug("pod action", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID, "action", a.String())
}

// record appends one decision about a pod to the journal.
func (m *Manager) record(pod *v1.Pod, now time.Time, decision string, because ...journal.Fact) {
	m.cfg.Journal.Append(journal.Record{
		Time: now, Part: "agent",
		Object:   journal.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		Decision: decision, Because: because,
	})
}
