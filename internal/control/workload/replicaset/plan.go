// Package replicaset keeps the asked-for number of pods of ReplicaSets and
// ReplicationControllers: the same plan over two API kinds.
package replicaset

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// Set is what the plan needs to know of either kind.
type Set struct {
	Replicas, MinReady int32
	Generation         int64
	TemplateLabels     labels.Set
	Deleting           bool
	Status             status
}

// status is the status of either kind, in the words of ReplicaSet.
type status = appsv1.ReplicaSetStatus

// Plan is what to do next about one set.
type Plan struct {
	Create int
	// Delete lists the pods to delete, the least valuable first.
	Delete []*v1.Pod
	// status is the new status, before the outcome of Create and Delete.
	Status status
	// Wake is when a ready pod becomes available by itself, 0 for never.
	Wake    time.Duration
	Because []journal.Fact
}

// Make compares what is asked with the set's own pods. onNode says how many
// active pods of the same family (the Deployment's other sets included) share
// each pod's node, so that doubled-up pods go first.
func Make(s *Set, pods []*v1.Pod, onNode map[string]int, now time.Time) Plan {
	p := Plan{Status: countStatus(s, pods, now)}
	var active []*v1.Pod
	for _, pod := range pods {
		if !podutil.Active(pod) {
			continue
		}
		active = append(active, pod)
		if ok, wait := podutil.Available(pod, s.MinReady, now); !ok && wait > 0 && (p.Wake == 0 || wait < p.Wake) {
			p.Wake = wait
		}
	}
	if s.Deleting {
		return p
	}
	diff := int(s.Replicas) - len(active)
	switch {
	case diff > 0:
		p.Create = min(diff, podcontrol.Burst)
	case diff < 0:
		sort.SliceStable(active, func(i, j int) bool { return lessValuable(active[i], active[j], onNode, now) })
		p.Delete = active[:min(-diff, podcontrol.Burst)]
	}
	if diff != 0 {
		p.Because = []journal.Fact{{Name: "wanted", Value: strconv.Itoa(int(s.Replicas))},
			{Name: "active", Value: fmt.Sprintf("%d of %d pods", len(active), len(pods))}}
	}
	return p
}

func countStatus(s *Set, pods []*v1.Pod, now time.Time) status {
	st := *s.Status.DeepCopy()
	st.Replicas, st.FullyLabeledReplicas, st.ReadyReplicas, st.AvailableReplicas = 0, 0, 0, 0
	want := labels.SelectorFromValidatedSet(s.TemplateLabels)
	var leaving int32
	for _, pod := range pods {
		if !podutil.Active(pod) {
			if pod.DeletionTimestamp != nil && !podutil.Terminal(pod) {
				leaving++
			}
			continue
		}
		st.Replicas++
		if want.Matches(labels.Set(pod.Labels)) {
			st.FullyLabeledReplicas++
		}
		if podutil.Ready(pod) {
			st.ReadyReplicas++
			if ok, _ := podutil.Available(pod, s.MinReady, now); ok {
				st.AvailableReplicas++
			}
		}
	}
	st.TerminatingReplicas = &leaving
	st.ObservedGeneration = s.Generation
	return st
}

// outcome folds the result of Create and Delete into the status' conditions.
func outcome(st *status, reason string, err error, now time.Time) {
	i := 0
	for _, c := range st.Conditions {
		if c.Type != appsv1.ReplicaSetReplicaFailure {
			st.Conditions[i] = c
			i++
			continue
		}
		if err != nil && c.Reason == reason {
			// Same failure: keep when it began.
			now = c.LastTransitionTime.Time
		}
	}
	st.Conditions = st.Conditions[:i]
	if err != nil {
		st.Conditions = append(st.Conditions, appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure,
			Status: v1.ConditionTrue, Reason: reason, Message: err.Error(), LastTransitionTime: metav1.NewTime(now)})
	}
	if len(st.Conditions) == 0 {
		st.Conditions = nil
	}
}

// deletionCost is the annotation by which users mark pods to go first (low).
const deletionCost = "controller.kubernetes.io/pod-deletion-cost"

// lessValuable orders pods by the documented rule: not assigned, then pending,
// then not ready, then cheap to delete, then sharing their node with more of
// the family, then ready for less time, then restarted more (sidecars last),
// then younger. Ages compare on a logarithmic scale, so that pods of about the
// same age are chosen by identity and not always the very newest.
func lessValuable(a, b *v1.Pod, onNode map[string]int, now time.Time) bool {
	if x, y := a.Spec.NodeName == "", b.Spec.NodeName == ""; x != y {
		return x
	}
	if x, y := phaseRank(a), phaseRank(b); x != y {
		return x < y
	}
	x, y := podutil.Ready(a), podutil.Ready(b)
	if x != y {
		return !x
	}
	if ca, cb := cost(a), cost(b); ca != cb {
		return ca < cb
	}
	if na, nb := onNode[a.Spec.NodeName], onNode[b.Spec.NodeName]; na != nb {
		return na > nb
	}
	if x {
		if ta, tb := readySince(a), readySince(b); !ta.Equal(tb) {
			if la, lb := logAge(ta, now), logAge(tb, now); la != lb {
				return la < lb
			}
		}
	}
	if ra, rb := restarts(a), restarts(b); ra != rb {
		return ra > rb
	}
	if ra, rb := sidecarRestarts(a), sidecarRestarts(b); ra != rb {
		return ra > rb
	}
	if la, lb := logAge(a.CreationTimestamp.Time, now), logAge(b.CreationTimestamp.Time, now); la != lb {
		return la < lb
	}
	return a.UID < b.UID
}

func phaseRank(p *v1.Pod) int {
	switch p.Status.Phase {
	case v1.PodRunning:
		return 2
	case v1.PodUnknown:
		return 1
	default:
		return 0
	}
}

func cost(p *v1.Pod) int64 {
	n, err := strconv.ParseInt(p.Annotations[deletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

func readySince(p *v1.Pod) time.Time {
	return podutil.Condition(p, v1.PodReady).LastTransitionTime.Time
}

func restarts(p *v1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n = max(n, c.RestartCount)
	}
	return n
}

// sidecarRestarts counts for pods whose other containers restarted as often.
func sidecarRestarts(p *v1.Pod) (n int32) {
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
		}
	}
	for _, c := range p.Status.InitContainerStatuses {
		if sidecars[c.Name] {
			n = max(n, c.RestartCount)
		}
	}
	return n
}

func logAge(t, now time.Time) int {
	age := now.Sub(t)
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}
