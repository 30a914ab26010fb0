// Package health turns what nodes say and fail to say into conditions and
// taints.
package health

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionTaints maps a condition's status to the NoSchedule taint it means.
var conditionTaints = []struct {
	condition v1.NodeConditionType
	status    v1.ConditionStatus
	key       string
}{
	{v1.NodeReady, v1.ConditionFalse, v1.TaintNodeNotReady},
	{v1.NodeReady, v1.ConditionUnknown, v1.TaintNodeUnreachable},
	{v1.NodeMemoryPressure, v1.ConditionTrue, v1.TaintNodeMemoryPressure},
	{v1.NodeDiskPressure, v1.ConditionTrue, v1.TaintNodeDiskPressure},
	{v1.NodePIDPressure, v1.ConditionTrue, v1.TaintNodePIDPressure},
	{v1.NodeNetworkUnavailable, v1.ConditionTrue, v1.TaintNodeNetworkUnavailable},
}

// owned are the NoSchedule keys this package writes; all others belong to
// somebody else and are never touched.
var owned = []string{
	v1.TaintNodeNotReady, v1.TaintNodeUnreachable, v1.TaintNodeMemoryPressure, v1.TaintNodeDiskPressure,
	v1.TaintNodePIDPressure, v1.TaintNodeNetworkUnavailable, v1.TaintNodeUnschedulable,
}

// NoSchedule returns the taints the node should have, given its conditions and
// its own, and whether that differs from what it has. Taints that are kept
// keep their timeAdded; now dates new ones. A node that never said anything
// about being ready keeps the taint it was created with.
func NoSchedule(n *v1.Node, now metav1.Time) (taints []v1.Taint, changed bool) {
	want := map[string]bool{}
	said := false
	for _, c := range n.Status.Conditions {
		said = said || c.Type == v1.NodeReady
		for _, m := range conditionTaints {
			if c.Type == m.condition && c.Status == m.status {
				want[m.key] = true
			}
		}
	}
	if n.Spec.Unschedulable {
		want[v1.TaintNodeUnschedulable] = true
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != v1.TaintEffectNoSchedule || !slices.Contains(owned, t.Key) {
			taints = append(taints, t)
			continue
		}
		if want[t.Key] || t.Key == v1.TaintNodeNotReady && !said {
			delete(want, t.Key)
			taints = append(taints, t)
			continue
		}
		changed = true
	}
	for _, key := range owned {
		if want[key] {
			taints = append(taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule, TimeAdded: &now})
			changed = true
		}
	}
	return taints, changed
}
