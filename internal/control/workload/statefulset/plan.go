// Package statefulset keeps the numbered pods of StatefulSets, each with its
// own name and volumes, in order or in parallel.
package statefulset

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// Input is everything one plan looks at.
type Input struct {
	Set *appsv1.StatefulSet
	// Pods are the set's own.
	Pods []*v1.Pod
	// Current and Update name the revisions it moves from and to; equal when
	// no update is under way.
	Current, Update string
	Now             time.Time
}

// Creation is one pod to make.
type Creation struct {
	Ordinal  int
	Revision string
}

// Plan is what to do next about one set.
type Plan struct {
	Create []Creation
	Delete []*v1.Pod
	// Ended are the pods in Delete that failed or succeeded by themselves.
	Ended   []*v1.Pod
	Status  appsv1.StatefulSetStatus
	Wake    time.Duration
	Because []journal.Fact
}

// planner sorts pods into the slots they fill.
type planner struct {
	Input
	plan            Plan
	start, replicas int
	slots           []*v1.Pod // by ordinal-start; nil is empty
	condemned       []*v1.Pod // highest ordinal first
	ordered         bool
}

// Ordinal reads the number off a pod's name; ok is false for a stranger.
func Ordinal(set string, pod string) (n int, ok bool) {
	rest, found := strings.CutPrefix(pod, set+"-")
	if !found {
		return 0, false
	}
	n, err := strconv.Atoi(rest)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == rest
}

// Make plans the next pods to create and delete. With ordered management at
// most one pod changes at a time, and nothing happens while one is on its way.
func Make(in Input) Plan {
	p := &planner{Input: in, replicas: 1, ordered: in.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	if in.Set.Spec.Replicas != nil {
		p.replicas = int(*in.Set.Spec.Replicas)
	}
	if o := in.Set.Spec.Ordinals; o != nil {
		p.start = int(o.Start)
	}
	p.sort()
	if in.Set.DeletionTimestamp == nil && p.fill() && p.shrink() {
		p.update()
	}
	p.status()
	if n, m := len(p.plan.Create), len(p.plan.Delete); n+m > 0 {
		p.plan.Because = p.because()
	}
	return p.plan
}

func (p *planner) sort() {
	p.slots = make([]*v1.Pod, p.replicas)
	for _, pod := range p.Pods {
		n, ok := Ordinal(p.Set.Name, pod.Name)
		switch {
		case !ok:
		case n >= p.start && n < p.start+p.replicas:
			p.slots[n-p.start] = pod
		default:
			p.condemned = append(p.condemned, pod)
		}
	}
	sort.Slice(p.condemned, func(i, j int) bool {
		a, _ := Ordinal(p.Set.Name, p.condemned[i].Name)
		b, _ := Ordinal(p.Set.Name, p.condemned[j].Name)
		return a > b
	})
}

// revisionFor is the revision a new pod gets: below the partition the current
// one, so that a pod that is recreated there stays as it was.
func (p *planner) revisionFor(ordinal int) string {
	st := p.Set.Spec.UpdateStrategy
	if st.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return p.Update
	}
	if ordinal < p.start+p.partition() {
		return p.Current
	}
	return p.Update
}

func (p *planner) partition() int {
	if ru := p.Set.Spec.UpdateStrategy.RollingUpdate; ru != nil && ru.Partition != nil {
		return int(*ru.Partition)
	}
	return 0
}

// healthy says whether a pod lets the next step begin: running, ready, for
// minReadySeconds, and not on its way out.
func (p *planner) healthy(pod *v1.Pod) bool {
	if pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodRunning {
		return false
	}
	ok, wait := podutil.Available(pod, p.Set.Spec.MinReadySeconds, p.Now)
	if wait > 0 && (p.plan.Wake == 0 || wait < p.plan.Wake) {
		p.plan.Wake = wait
	}
	return ok
}

// fill makes the missing pods from the lowest ordinal up and replaces ended
// ones. It says whether the later steps may go on.
func (p *planner) fill() bool {
	for i, pod := range p.slots {
		switch {
		case pod == nil:
			p.plan.Create = append(p.plan.Create, Creation{p.start + i, p.revisionFor(p.start + i)})
			if p.ordered {
				return false
			}
		case podutil.Terminal(pod) && pod.DeletionTimestamp == nil:
			p.plan.Delete, p.plan.Ended = append(p.plan.Delete, pod), append(p.plan.Ended, pod)
			if p.ordered {
				return false
			}
		case p.ordered && !p.healthy(pod):
			return false
		}
	}
	return true
}

// shrink deletes pods beyond the size, the highest ordinal first. In order, a pod
// that is not healthy is deleted only if all before it are: an ailing set is not
// made smaller from its upper end (upstream's rule, and its conformance suite's).
// One that has ended cannot recover, so nothing waits for it.
func (p *planner) shrink() bool {
	var first *v1.Pod // of the pods that are not healthy
	for _, pod := range p.condemned {
		if !p.healthy(pod) {
			first = pod
		}
	}
	for _, pod := range p.condemned {
		if pod.DeletionTimestamp != nil {
			if p.ordered {
				return false
			}
			continue
		}
		if p.ordered && pod != first && !podutil.Terminal(pod) && !p.healthy(pod) {
			return false
		}
		p.plan.Delete = append(p.plan.Delete, pod)
		if p.ordered {
			return false
		}
	}
	return len(p.condemned) == 0 || !p.ordered
}

// update replaces pods of other revisions from the highest ordinal down to the
// partition, as many at a time as maxUnavailable allows.
func (p *planner) update() {
	if p.Set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	budget := p.maxUnavailable()
	for _, pod := range p.slots {
		if !p.healthy(pod) {
			budget--
		}
	}
	for i := len(p.slots) - 1; i >= p.partition() && i >= 0; i-- {
		pod := p.slots[i]
		if pod == nil || pod.DeletionTimestamp != nil {
			continue
		}
		if revision(pod) == p.Update {
			if !p.healthy(pod) && p.ordered && p.maxUnavailable() == 1 {
				return // the new template has to prove itself first
			}
			continue
		}
		if !p.healthy(pod) {
			// It is down anyway: replacing it costs nothing.
			p.drop(pod)
			if p.maxUnavailable() == 1 {
				return
			}
			continue
		}
		if budget <= 0 {
			return
		}
		budget--
		p.drop(pod)
		if p.maxUnavailable() == 1 {
			return
		}
	}
}

func (p *planner) drop(pod *v1.Pod) {
	for _, d := range p.plan.Delete {
		if d == pod {
			return
		}
	}
	p.plan.Delete = append(p.plan.Delete, pod)
}

func (p *planner) maxUnavailable() int {
	ru := p.Set.Spec.UpdateStrategy.RollingUpdate
	if ru == nil || ru.MaxUnavailable == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(ru.MaxUnavailable, p.replicas, false)
	if err != nil || n < 1 {
		return 1
	}
	return n
}

func revision(pod *v1.Pod) string { return pod.Labels[appsv1.ControllerRevisionHashLabelKey] }

func (p *planner) status() {
	st := *p.Set.Status.DeepCopy()
	st.ObservedGeneration = p.Set.Generation
	st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.CurrentReplicas, st.UpdatedReplicas = 0, 0, 0, 0, 0
	st.CurrentRevision, st.UpdateRevision = p.Current, p.Update
	updatedReady := int32(0)
	for _, pod := range p.Pods {
		if _, ok := Ordinal(p.Set.Name, pod.Name); !ok {
			continue
		}
		st.Replicas++
		if pod.Status.Phase == v1.PodRunning && podutil.Ready(pod) {
			st.ReadyReplicas++
			if p.healthy(pod) {
				st.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revision(pod) == p.Current {
			st.CurrentReplicas++
		}
		if revision(pod) == p.Update {
			st.UpdatedReplicas++
			if podutil.Ready(pod) {
				updatedReady++
			}
		}
	}
	// An update is over once every pod runs the new revision and is ready.
	if p.Set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && p.Current != p.Update &&
		int(st.UpdatedReplicas) == p.replicas && int(updatedReady) == p.replicas && int(st.Replicas) == p.replicas {
		st.CurrentRevision, st.CurrentReplicas = p.Update, st.UpdatedReplicas
	}
	p.plan.Status = st
}

func (p *planner) because() []journal.Fact {
	up := 0
	for _, pod := range p.slots {
		if p.healthy(pod) {
			up++
		}
	}
	facts := []journal.Fact{{Name: "healthy", Value: fmt.Sprintf("%d of %d", up, p.replicas)}}
	if p.Current != p.Update {
		facts = append(facts, journal.Fact{Name: "updating", Value: p.Current + " to " + p.Update})
	}
	for _, c := range p.plan.Create {
		facts = append(facts, journal.Fact{Name: "missing", Value: fmt.Sprintf("%s-%d", p.Set.Name, c.Ordinal)})
	}
	return facts
}
