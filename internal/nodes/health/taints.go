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
// another party and are never touched.
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

// noExecute returns taints with exactly the one noExecute taint of ours that
// key names ("" for none), and whether that differs. A taint that takes the
// other's place takes its time too: a node that goes from not ready to silent
// does not give its pods another toleration.
func noExecute(taints []v1.Taint, key string, now metav1.Time) (out []v1.Taint, changed bool) {
	have := false
	since := &now
	for _, t := range taints {
		ours := t.Effect == v1.TaintEffectNoExecute && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
		switch {
		case !ours:
			out = append(out, t)
		case t.Key == key && !have:
			have = true
			out = append(out, t)
		default:
			changed = true
			if t.TimeAdded != nil {
				since = t.TimeAdded
			}
		}
	}
	if key != "" && !have {
		return append(out, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute, TimeAdded: since}), true
	}
	return out, changed
}

// unknownConditions are the conditions a silent node gets: Ready and the three
// pressures as Unknown, each only where it does not say so yet. A network that
// is not there is another's to report.
func unknownConditions(n *v1.Node, now metav1.Time) (out []v1.NodeCondition) {
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
		c := v1.NodeCondition{Type: kind, Status: v1.ConditionUnknown, LastTransitionTime: now,
			Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."}
		if i < 0 {
			c.Reason, c.Message, c.LastHeartbeatTime = "NodeStatusNeverUpdated", "Kubelet never posted node status.", n.CreationTimestamp
		} else {
			if n.Status.Conditions[i].Status == v1.ConditionUnknown {
				continue
			}
			c.LastHeartbeatTime = n.Status.Conditions[i].LastHeartbeatTime
		}
		out = append(out, c)
	}
	return out
}

// betaLabels maps the stable labels of a node to the old names that some
// still select by.
var betaLabels = map[string]string{v1.LabelOSStable: "beta.kubernetes.io/os", v1.LabelArchStable: "beta.kubernetes.io/arch"}

// labels are the old labels to set so that they say what the stable ones say;
// nil for none.
func labels(n *v1.Node) map[string]string {
	var set map[string]string
	for stable, beta := range betaLabels {
		want, have := n.Labels[stable]
		if !have || n.Labels[beta] == want {
			continue
		}
		if set == nil {
			set = map[string]string{}
		}
		set[beta] = want
	}
	return set
}
