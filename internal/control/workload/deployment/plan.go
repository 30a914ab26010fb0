// Package deployment moves Deployments from one pod template to the next by
// scaling ReplicaSets.
package deployment

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/journal"
)

// input is everything one plan looks at.
type input struct {
	D *appsv1.Deployment
	// Sets are the ReplicaSets it controls.
	Sets []*appsv1.ReplicaSet
	// Unfinished counts, per set, the pods that have not ended, terminating
	// ones included: Recreate waits for them.
	Unfinished map[types.UID]int
	Now        time.Time
}

// verb is what a Step does to its set.
type verb string

// The verbs of a Step.
const (
	Create   verb = "create"
	Scale    verb = "scale"
	Annotate verb = "annotate"
	Delete   verb = "delete"
)

// step is one write to a ReplicaSet. Every step is guarded by the version of
// the set the plan saw, so that a stale plan fails instead of acting.
type step struct {
	Verb verb
	// Set is the set as seen; for Create, the set to create.
	Set *appsv1.ReplicaSet
	// Replicas is the new size, for Scale.
	Replicas int32
	// Annotations are all its annotations afterwards, for Scale and Annotate.
	Annotations map[string]string
	// MinReady is its minReadySeconds afterwards, for Scale and Annotate.
	MinReady int32
}

// plan is what to do next about one Deployment.
type plan struct {
	Steps []step
	// Revision is the value its revision annotation should have; empty: leave.
	Revision string
	Status   appsv1.DeploymentStatus
	// Wake is when the progress deadline needs another look, 0 for never.
	Wake    time.Duration
	Because []journal.Fact
}

// makePlan plans the next writes. It never has to be right about what other
// controllers do meanwhile: each write leads to an event and a new plan.
func makePlan(in input) plan {
	r := newRollout(in)
	if in.D.DeletionTimestamp == nil {
		r.steps()
	}
	r.status()
	if len(r.plan.Steps) > 0 {
		r.plan.Because = r.because()
	}
	return r.plan
}

// rollout is the state of one planning pass. spec holds the size of each set
// after the steps planned so far.
type rollout struct {
	input
	replicas                 int32
	maxSurge, maxUnavailable int32
	newSet                   *appsv1.ReplicaSet // nil until created
	old                      []*appsv1.ReplicaSet
	spec                     map[types.UID]int32
	notes                    map[types.UID]map[string]string
	plan                     plan
}

func newRollout(in input) *rollout {
	r := &rollout{input: in, replicas: 1, spec: map[types.UID]int32{}, notes: map[types.UID]map[string]string{}}
	if in.D.Spec.Replicas != nil {
		r.replicas = *in.D.Spec.Replicas
	}
	r.maxSurge, r.maxUnavailable = limits(in.D, r.replicas)
	r.newSet, r.old = split(in.D, in.Sets)
	for _, s := range in.Sets {
		r.spec[s.UID] = sizeOf(s)
		r.notes[s.UID] = s.Annotations
	}
	return r
}

// limits resolves maxSurge (rounded up) and maxUnavailable (rounded down) to
// pods; both zero would never move, so then one may be unavailable.
func limits(d *appsv1.Deployment, replicas int32) (surge, unavailable int32) {
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0, 0
	}
	ru := d.Spec.Strategy.RollingUpdate
	if ru == nil {
		ru = &appsv1.RollingUpdateDeployment{}
	}
	surge, unavailable = scaled(ru.MaxSurge, replicas, true), scaled(ru.MaxUnavailable, replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func scaled(v *intstr.IntOrString, of int32, up bool) int32 {
	if v == nil {
		q := intstr.FromString("25%")
		v = &q
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(of), up)
	if err != nil {
		return 0
	}
	return int32(n)
}

func (r *rollout) steps() {
	r.syncRevisions()
	switch {
	case r.D.Spec.Paused:
		r.scaleTogether()
		r.forgetHistory()
	case r.sizeChanged():
		r.scaleTogether()
	case r.D.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		r.recreate()
	default:
		r.rolling()
	}
}

// recreate stops every old pod before the first new one starts.
func (r *rollout) recreate() {
	busy := false
	for _, s := range r.old {
		if r.spec[s.UID] > 0 {
			r.scale(s, 0)
			busy = true
		}
		busy = busy || r.Unfinished[s.UID] > 0
	}
	if busy {
		return
	}
	if r.newSet == nil {
		r.create(r.replicas)
		return
	}
	r.scale(r.newSet, r.replicas)
	r.forgetHistoryWhenDone()
}

// rolling keeps at most replicas+maxSurge pods and at least
// replicas-maxUnavailable available ones while it moves them over.
func (r *rollout) rolling() {
	if r.newSet == nil {
		r.create(r.growTo(0))
		return
	}
	if want := r.newSize(); want != r.spec[r.newSet.UID] {
		r.scale(r.newSet, want)
		return
	}
	if r.shrinkOld() {
		return
	}
	r.forgetHistoryWhenDone()
}

func (r *rollout) newSize() int32 {
	have := r.spec[r.newSet.UID]
	if have >= r.replicas {
		return r.replicas
	}
	return r.growTo(have)
}

// growTo returns how large the new set of the given size may become now.
func (r *rollout) growTo(have int32) int32 {
	room := r.replicas + r.maxSurge - r.total()
	return have + max(min(room, r.replicas-have), 0)
}

func (r *rollout) total() (n int32) {
	for _, k := range r.spec {
		n += k
	}
	return n
}

// shrinkOld takes pods of old sets away: first the ones that are not available
// anyway, then as many available ones as the minimum allows.
func (r *rollout) shrinkOld() bool {
	minAvailable := r.replicas - r.maxUnavailable
	newUnavailable := r.spec[r.newSet.UID] - r.newSet.Status.AvailableReplicas
	budget := r.total() - minAvailable - newUnavailable
	if budget <= 0 {
		return false
	}
	shrunk := false
	oldest := append([]*appsv1.ReplicaSet(nil), r.old...)
	sort.SliceStable(oldest, func(i, j int) bool { return oldest[i].CreationTimestamp.Before(&oldest[j].CreationTimestamp) })
	for _, s := range oldest {
		sick := r.spec[s.UID] - min(s.Status.AvailableReplicas, r.spec[s.UID])
		if n := min(sick, budget); n > 0 {
			r.scale(s, r.spec[s.UID]-n)
			budget -= n
			shrunk = true
		}
	}
	var available int32
	for _, s := range r.Sets {
		available += min(s.Status.AvailableReplicas, r.spec[s.UID])
	}
	spare := min(available-minAvailable, budget)
	for _, s := range oldest {
		if n := min(r.spec[s.UID], spare); n > 0 {
			r.scale(s, r.spec[s.UID]-n)
			spare -= n
			shrunk = true
		}
	}
	return shrunk
}

// scale plans a new size, with the annotations that record what it was
// computed for.
func (r *rollout) scale(s *appsv1.ReplicaSet, to int32) {
	notes := with(r.notes[s.UID], r.sizeNotes())
	if to == r.spec[s.UID] && same(notes, r.notes[s.UID]) {
		return
	}
	r.spec[s.UID], r.notes[s.UID] = to, notes
	for i := range r.plan.Steps {
		// One write per set: a later size replaces an earlier one, and takes
		// the annotations along.
		if st := &r.plan.Steps[i]; st.Set.UID == s.UID {
			st.Verb, st.Replicas, st.Annotations = Scale, to, notes
			return
		}
	}
	r.plan.Steps = append(r.plan.Steps, step{Verb: Scale, Set: s, Replicas: to, Annotations: notes, MinReady: s.Spec.MinReadySeconds})
}

func (r *rollout) because() []journal.Fact {
	facts := []journal.Fact{{Name: "wanted", Value: fmt.Sprintf("%d pods, at most %d more, at most %d unavailable", r.replicas, r.maxSurge,
		r.maxUnavailable)}}
	for _, s := range r.Sets {
		if sizeOf(s) > 0 || s == r.newSet {
			facts = append(facts, journal.Fact{Name: s.Name, Value: fmt.Sprintf("%d pods, %d available", sizeOf(s),
				s.Status.AvailableReplicas)})
		}
	}
	return facts
}

func sizeOf(s *appsv1.ReplicaSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}

func (r *rollout) sizeNotes() map[string]string {
	return map[string]string{desiredAnnotation: strconv.Itoa(int(r.replicas)), maxAnnotation: strconv.Itoa(int(r.replicas + r.maxSurge))}
}

// condition finds a condition by type.
func condition(st *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}
