// Package admission takes pods on the node one after the other: package admit
// judges, this one keeps account of who has what and ends those who have to go.
package admission

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/admit"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/podutil"
)

// Opinion is one view of whether the node takes a pod: eviction,
// shutdown and the like. ok false refuses it with reason and message.
type Opinion func(pod *v1.Pod) (reason, message string, ok bool)

// Admission takes pods one after the other, so that two never get the same
// room.
type Admission struct {
	node Node
	// before are asked before what the node has room for, after behind it.
	before, after []Opinion
	// resizable may refuse other resources to a running pod, for good.
	resizable []Opinion
	// pinned says why what a pod has alone cannot become what it wants; empty:
	// it can.
	pinned func(now, desired *v1.Pod) string
	// known are all pods that the agent has; runs tells of one whether the
	// runtime holds anything of it.
	known func() []*v1.Pod
	runs  func(uid types.UID) bool
	kill  func(p *v1.Pod) <-chan struct{}
	// lives tells of a pod whether it still has a sandbox that runs; give gives
	// a pod what it is to have alone.
	lives func(uid types.UID) bool
	give  Opinion
	// left is closed when nothing runs any more of a pod that no source has;
	// nil for all others.
	left func(uid types.UID) <-chan struct{}
	// drop takes back what was given to a pod that is refused or gone.
	drop func(uid types.UID)

	rejections, preemptions *prometheus.CounterVec

	mu       sync.Mutex
	admitted map[types.UID]*v1.Pod
	// leaving are pods that go, for a critical one or because they were deleted
	// by force; their room is given away, and who gets it waits for their end.
	leaving map[types.UID]<-chan struct{}
	waiting map[types.UID]admit.Want // for other resources
	seq     int
}

// Node is this node as the API last showed it.
type Node interface {
	Get() *v1.Node
	// Wait returns when the Node is known or ctx ends.
	Wait(ctx context.Context)
	// Fetch asks the API; nil when it does not answer.
	Fetch(ctx context.Context) *v1.Node
}

// pods are the pods that the agent has; pod.Signals has it.
type pods interface {
	List() []*v1.Pod
	Get(uid types.UID) (*v1.Pod, bool)
	Kill(uid types.UID, k pod.Kill) <-chan struct{}
	// Terminated is closed when nothing runs any more of a pod that no source has; nil
	// for all others.
	Terminated(uid types.UID) <-chan struct{}
}

// Config is what an Admission works with; all of it is required.
type Config struct {
	Node Node
	Pods pods
	// Runtime is what the runtime holds of a pod.
	Runtime interface {
		Pod(uid types.UID) *runtime.Pod
	}
	// Before are asked before what the node has room for, After behind it.
	Before, After []Opinion
	// Resizable may refuse other resources to a running pod, for good.
	Resizable []Opinion
	// Exclusive gives pods what they have alone.
	Exclusive *Exclusive
	// Preempted reports that a pod ends for a critical one.
	Preempted func(p *v1.Pod, reason, message string)
	Register  func(...prometheus.Collector)
}

// New makes an Admission; what Exclusive gives is the last opinion before the
// node's room.
func New(cfg Config) *Admission {
	a := &Admission{
		node: cfg.Node, before: append(slices.Clone(cfg.Before), cfg.Exclusive.Give), after: cfg.After, resizable: cfg.Resizable,
		pinned: cfg.Exclusive.Assigned.ResizeRefusal, known: cfg.Pods.List,
		runs: func(uid types.UID) bool { return !cfg.Runtime.Pod(uid).Empty() },
		lives: func(uid types.UID) bool {
			held := cfg.Runtime.Pod(uid)
			return !held.Empty() && slices.ContainsFunc(held.Sandboxes, func(s *runtime.Sandbox) bool { return s.Ready })
		},
		kill: func(p *v1.Pod) <-chan struct{} {
			gone := cfg.Pods.Kill(p.UID, pod.Kill{
				Phase: v1.PodFailed, Reason: admit.Preempting, Message: admit.PreemptingMessage,
				Condition: pod.Disrupted(admit.DisruptionMessage),
			})
			if gone != nil {
				cfg.Preempted(p, admit.Preempting, admit.PreemptingMessage)
			}
			return gone
		},
		give: cfg.Exclusive.Give, left: cfg.Pods.Terminated, drop: cfg.Exclusive.Drop,
		admitted: map[types.UID]*v1.Pod{}, leaving: map[types.UID]<-chan struct{}{}, waiting: map[types.UID]admit.Want{},
	}
	a.rejections = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_admission_rejections_total",
		Help: "Pods refused by the node, by reason."}, []string{"reason"})
	a.preemptions = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_preemptions",
		Help: "Pods ended for a critical one, by the resource there was too little of."}, []string{"preemption_signal"})
	cfg.Register(a.rejections, a.preemptions)
	return a
}

// Admit decides; pods that run already are only counted. It returns when those
// that have to go for a critical pod are gone.
func (a *Admission) Admit(ctx context.Context, p *v1.Pod, adopted bool) *pod.Rejection {
	if adopted {
		return a.adopt(p)
	}
	if !podutil.Static(p) {
		a.node.Wait(ctx)
	}
	refused, first := a.decide(p, a.node.Get())
	if refused != nil && takenAlone[refused.Reason] {
		// What lacks may be with pods that were deleted by force and still end.
		if going := a.departing(); len(going) > 0 {
			if !await(ctx, going) {
				return nil
			}
			refused, first = a.decide(p, a.node.Get())
		}
	}
	if refused != nil && refused.Reason == admit.NodeAffinity {
		// Who placed it may have seen newer labels than this agent has.
		if now := a.node.Fetch(ctx); now != nil {
			refused, first = a.decide(p, now)
		}
	}
	if refused != nil {
		a.rejections.WithLabelValues(rejectionLabel(refused.Reason)).Inc()
		return refused
	}
	await(ctx, first)
	return nil
}

// takenAlone are the reasons for which a pod is refused that does not get what
// it was to have alone.
var takenAlone = map[string]bool{"UnexpectedAdmissionError": true, "TopologyAffinityError": true, "SMTAlignmentError": true}

// departing is closed, channel by channel, when those are gone that have to go.
func (a *Admission) departing() []<-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.others("")
	return slices.Collect(maps.Values(a.leaving))
}

// await waits for all channels; false if ctx ends first.
func await(ctx context.Context, list []<-chan struct{}) bool {
	for _, gone := range list {
		select {
		case <-gone:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// adopt counts a pod that an agent before this one admitted. One that the
// host has to start again, after a reboot, needs what it had alone again: its
// devices may not be there any more.
func (a *Admission) adopt(p *v1.Pod) *pod.Rejection {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.lives(p.UID) {
		if refused := ask([]Opinion{a.give}, p); refused != nil {
			a.drop(p.UID)
			a.rejections.WithLabelValues(rejectionLabel(refused.Reason)).Inc()
			return refused
		}
	}
	a.admitted[p.UID] = p
	return nil
}

// decide also returns who has to be gone before the pod may start.
func (a *Admission) decide(p *v1.Pod, node *v1.Node) (refused *pod.Rejection, first []<-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() {
		if refused != nil {
			a.drop(p.UID) // before the next pod asks for it
		}
	}()
	if r := ask(a.before, p); r != nil {
		return r, nil
	}
	late := ask(a.after, p)
	if node == nil {
		a.take(p, late)
		return late, nil
	}
	others := a.others(p.UID)
	refusals := admit.Refusals(p, node, others)
	if len(refusals) > 0 && late == nil && admit.MayPreempt(p, refusals) {
		victims, err := admit.Victims(p, refusals, others)
		if err != nil {
			return &pod.Rejection{Reason: "UnexpectedAdmissionError",
				Message: "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods " +
					"to preempt: " + err.Error()}, nil
		}
		for _, v := range victims {
			if gone := a.kill(v); gone != nil {
				a.leaving[v.UID] = gone
				a.preemptions.WithLabelValues(string(refusals[0].Resource)).Inc()
			}
		}
		refusals = nil
	}
	if len(refusals) > 0 {
		return &refusals[0].Rejection, nil
	}
	a.take(p, late)
	if late == nil && len(a.leaving) > 0 && admit.Fit(p, node, append(others, a.going()...)) != nil {
		first = slices.Collect(maps.Values(a.leaving))
	}
	return late, first
}

// take counts a pod unless it is refused after all; a.mu is held.
func (a *Admission) take(p *v1.Pod, refused *pod.Rejection) {
	if refused == nil {
		a.admitted[p.UID] = p
	}
}

func ask(list []Opinion, p *v1.Pod) *pod.Rejection {
	for _, f := range list {
		if reason, message, ok := f(p); !ok {
			return &pod.Rejection{Reason: reason, Message: message}
		}
	}
	return nil
}

// Resize decides whether a pod may have other resources beside all others.
func (a *Admission) Resize(_ context.Context, desired *v1.Pod) *pod.Rejection {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := ask(a.resizable, desired); r != nil {
		return &pod.Rejection{Reason: v1.PodReasonInfeasible, Message: r.Message}
	}
	want := admit.Want{Has: a.admitted[desired.UID], Wants: desired, Since: a.waiting[desired.UID].Since}
	if want.Has == nil {
		want.Has = desired
	}
	if why := a.pinned(want.Has, desired); why != "" {
		return &pod.Rejection{Reason: v1.PodReasonInfeasible, Message: why}
	}
	if want.Since == 0 {
		a.seq++
		want.Since = a.seq
	}
	a.waiting[desired.UID] = want
	if node := a.node.Get(); node != nil {
		if r := admit.Resize(desired.UID, slices.Collect(maps.Values(a.waiting)), node, a.others("")); r != nil {
			return r
		}
	}
	a.admitted[desired.UID] = desired
	delete(a.waiting, desired.UID)
	return nil
}

// Settled tells that a pod no longer asks for other resources.
func (a *Admission) Settled(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, uid)
}

// others are the pods that hold room and are not over; a.mu is held. Pods that
// an agent before this one started count before they are adopted.
func (a *Admission) others(but types.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, now := range a.known() {
		if gone := a.left(now.UID); gone != nil && a.leaving[now.UID] == nil {
			// Anyone who bound a pod here no longer saw this one.
			a.leaving[now.UID] = gone
		}
		p := a.admitted[now.UID] // with the resources that were promised here
		if p == nil && a.runs(now.UID) {
			p = now
		}
		if p != nil && p.UID != but && a.leaving[p.UID] == nil && !podutil.Terminal(now) {
			out = append(out, p)
		}
	}
	return out
}

// going are the pods that still have to go; a.mu is held.
func (a *Admission) going() (out []*v1.Pod) {
	for uid, gone := range a.leaving {
		select {
		case <-gone:
			delete(a.leaving, uid)
		default:
			out = append(out, a.admitted[uid])
		}
	}
	return slices.DeleteFunc(out, func(p *v1.Pod) bool { return p == nil })
}

// Forget gives back the room of a pod that is gone.
func (a *Admission) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.admitted, uid)
	delete(a.leaving, uid)
	delete(a.waiting, uid)
	a.drop(uid)
}

// rejectionLabels are the reasons that the metric tells apart.
var rejectionLabels = map[string]bool{
	"OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true, "NodeAffinity": true, "NodeName": true,
	"NodePorts":       true,
	"TaintToleration": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true,
	"SupplementalGroupsPolicyNotSupported": true,
	"UnexpectedAdmissionError":             true, "TopologyAffinityError": true, "SMTAlignmentError": true, "Evicted": true,
	"SysctlForbidden": true,
	"AppArmor":        true, "PodFeatureUnsupported": true, "NodeShutdown": true,
}

func rejectionLabel(reason string) string {
	switch {
	case rejectionLabels[reason]:
		return reason
	case len(reason) > len("OutOf") && reason[:len("OutOf")] == "OutOf":
		return "OutOfExtendedResources"
	}
	return "Other"
}
