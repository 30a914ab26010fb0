// Package disruption keeps the status of PodDisruptionBudgets: how many pods
// may be evicted right now.
package disruption

import (
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/podutil"
)

// forget is how long a pod that the eviction API counted may take to show as
// being deleted before the eviction is taken to have failed.
const forget = 2 * time.Minute

// expect says how many pods there should be: for a percentage or
// maxUnavailable the sum of the owners' sizes, otherwise the pods there are.
// scale gives the size of a pod's owner; ok is false when it has none that is
// known, which is an error for such budgets.
func expect(b *policyv1.PodDisruptionBudget, pods []*v1.Pod, scale func(*v1.Pod) (owner string, size int32, ok bool)) (expected,
	desired int32, problem string) {
	var v *intstr.IntOrString
	switch {
	case b.Spec.MaxUnavailable != nil:
		v = b.Spec.MaxUnavailable
	case b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String:
		v = b.Spec.MinAvailable
	case b.Spec.MinAvailable != nil:
		return int32(len(pods)), b.Spec.MinAvailable.IntVal, ""
	default:
		return int32(len(pods)), 0, ""
	}
	sizes := map[string]int32{}
	for _, p := range pods {
		owner, size, ok := scale(p)
		if !ok {
			return 0, 0, "found no controllers for pod \"" + p.Name + "\""
		}
		sizes[owner] = size
	}
	for _, n := range sizes {
		expected += n
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(expected), true)
	if err != nil {
		return 0, 0, err.Error()
	}
	if b.Spec.MaxUnavailable != nil {
		return expected, max(expected-int32(n), 0), ""
	}
	return expected, int32(n), ""
}

// status makes the new status. again is when a counted eviction has to be
// looked at, 0 for never.
func status(b *policyv1.PodDisruptionBudget, pods []*v1.Pod, expected, desired int32, now time.Time) (st policyv1.PodDisruptionBudgetStatus,
	again time.Duration) {
	st = *b.Status.DeepCopy()
	st.DisruptedPods = map[string]metav1.Time{}
	healthy := int32(0)
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		if at, counted := b.Status.DisruptedPods[p.Name]; counted {
			if left := at.Add(forget).Sub(now); left > 0 {
				// Evicted a moment ago: as good as gone.
				st.DisruptedPods[p.Name] = at
				if again == 0 || left < again {
					again = left
				}
				continue
			}
		}
		if podutil.Ready(p) {
			healthy++
		}
	}
	if len(st.DisruptedPods) == 0 {
		st.DisruptedPods = nil
	}
	st.CurrentHealthy, st.DesiredHealthy, st.ExpectedPods = healthy, desired, expected
	st.DisruptionsAllowed = max(healthy-desired, 0)
	if expected <= 0 {
		st.DisruptionsAllowed = 0
	}
	st.ObservedGeneration = b.Generation
	reason, yes := policyv1.InsufficientPodsReason, metav1.ConditionFalse
	if st.DisruptionsAllowed > 0 {
		reason, yes = policyv1.SufficientPodsReason, metav1.ConditionTrue
	}
	condition(&st, yes, reason, "", b.Generation, now)
	return st, again
}

// failed is the status when the owners' sizes cannot be found: nothing may be
// evicted.
func failed(b *policyv1.PodDisruptionBudget, problem string, now time.Time) policyv1.PodDisruptionBudgetStatus {
	st := *b.Status.DeepCopy()
	st.DisruptionsAllowed, st.ObservedGeneration = 0, b.Generation
	condition(&st, metav1.ConditionFalse, policyv1.SyncFailedReason, problem, b.Generation, now)
	return st
}

func condition(st *policyv1.PodDisruptionBudgetStatus, s metav1.ConditionStatus, reason, msg string, generation int64, now time.Time) {
	n := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: s, Reason: reason, Message: msg,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now)}
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == n.Type {
			if c.Status == s {
				n.LastTransitionTime = c.LastTransitionTime
			}
			*c = n
			return
		}
	}
	st.Conditions = append(st.Conditions, n)
}
