package health

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// What is to be written of a node and its pods so that they fit a verdict. These
// decisions are pure: the shell makes the writes against an API server, the cluster
// models of internal/sim and internal/nodes/modeltest in virtual time.

// Conditions are those that have to be written to the Node, nil if it fits. They
// come before its taints and its pods.
func (v Verdict) Conditions(n *v1.Node, now metav1.Time) []v1.NodeCondition {
	if !v.Unknown {
		return nil
	}
	return unknownConditions(n, now)
}

// TaintWrite is what has to be written to a Node's spec.
type TaintWrite struct {
	Taints  []v1.Taint // all of the node's taints, never nil if Changed
	Changed bool
	// noExecute is the key of our noExecute taint if it is among what changes.
	NoExecute string
	// Adds: a noExecute taint of ours is written where there is none. The write
	// needs an event of kind Tried after it.
	Adds bool
}

// Taints says how the node's taints have to change. acquire is called at most once,
// before a noExecute taint is added where there is none: false leaves that taint out.
func (v Verdict) Taints(n *v1.Node, now metav1.Time, acquire func() bool) TaintWrite {
	taints, changed := NoSchedule(n, now)
	key, view := v.NoExecute, ViewOf(n)
	adds := key != "" && view.taint() == ""
	if adds && !acquire() {
		key, adds = "", false
	}
	taints, more := noExecute(taints, key, now)
	if !changed && !more {
		return TaintWrite{}
	}
	if taints == nil {
		taints = []v1.Taint{} // written as a list, not as null
	}
	w := TaintWrite{Taints: taints, Changed: true, Adds: adds}
	if more {
		w.NoExecute = key
	}
	return w
}

// MarksPod says that a pod of the node has to become not ready.
func (v Verdict) MarksPod(p *v1.Pod) bool { return v.PodsNotReady && podutil.Ready(p) }

// MarksUpdatedPod says that for a pod that changed from was to p. What a node that
// still renews its lease reports of its pods later is left alone; a lost node
// reports nothing that could be true.
func (v Verdict) MarksUpdatedPod(was, p *v1.Pod) bool {
	older := v.Turned != 0 && version(p.ResourceVersion) != 0 && version(p.ResourceVersion) < v.Turned // and seen late
	return v.MarksPod(p) && (v.Ready == Unknown || was.Spec.NodeName == "" || older)
}
