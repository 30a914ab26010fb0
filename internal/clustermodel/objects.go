package clustermodel

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/nodes/health"
)

// Event is the lease as the node health core observes it.
func (l Lease) Event(node string) health.Event {
	return health.Event{Kind: health.LeaseSeen, Node: node, Renewed: l.Renewed, Written: l.Written, Version: l.Version, Lasts: l.Lasts}
}

// Conditions are those a node agent posts at a time of its own clock.
func Conditions(ready v1.ConditionStatus, at metav1.Time) []v1.NodeCondition {
	out := make([]v1.NodeCondition, 0, 4)
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeReady} {
		c := v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, LastHeartbeatTime: at}
		if kind == v1.NodeReady {
			c.Status = ready
		}
		out = append(out, c)
	}
	return out
}

// WithTransitions dates conditions: those that a node had before with the same
// status keep the time of their last transition, the others changed when posted.
func WithTransitions(conditions, before []v1.NodeCondition) []v1.NodeCondition {
	for i := range conditions {
		c := &conditions[i]
		c.LastTransitionTime = c.LastHeartbeatTime
		for _, was := range before {
			if was.Type == c.Type && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return conditions
}

// Merged is have with the conditions of set in place of those of the same type. It
// leaves both as they are.
func Merged(have, set []v1.NodeCondition) []v1.NodeCondition {
	out := slices.Clone(have)
	for _, c := range set {
		i := slices.IndexFunc(out, func(h v1.NodeCondition) bool { return h.Type == c.Type })
		if i < 0 {
			out = append(out, c)
		} else {
			out[i] = c
		}
	}
	return out
}

// NodeReady is the status of a Node's Ready condition, "" if it has none.
func NodeReady(n *v1.Node) v1.ConditionStatus {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == v1.NodeReady {
			return n.Status.Conditions[i].Status
		}
	}
	return ""
}

// Evicts says whether the Node has one of the two NoExecute taints that the node
// health controller writes.
func Evicts(n *v1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoExecute && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
	})
}

// SetPodReady gives a pod a new list of conditions: pods made together share one.
func SetPodReady(p *v1.Pod, status v1.ConditionStatus, at metav1.Time) {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: status, LastTransitionTime: at}}
}

// Toleration bears one of the two taints for so many seconds, for ever if nil.
func Toleration(key string, seconds *int64) v1.Toleration {
	return v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: seconds}
}

// Seconds is a time as the API keeps it: in whole seconds.
func Seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
