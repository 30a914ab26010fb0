// Package podutil answers the questions about a pod and its tolerations that
// many parts ask, so that all of them give the same answer.
package podutil

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Terminal says that no container of the pod will run again: it succeeded or
// failed.
func Terminal(p *v1.Pod) bool { return TerminalPhase(p.Status.Phase) }

// TerminalPhase says the same of a phase alone.
func TerminalPhase(ph v1.PodPhase) bool { return ph == v1.PodSucceeded || ph == v1.PodFailed }

// Active says whether a pod still counts as a replica: neither terminal nor
// being deleted.
func Active(p *v1.Pod) bool { return !Terminal(p) && p.DeletionTimestamp == nil }

// Mirror says whether the pod stands in the API for a static one of its node.
func Mirror(p *v1.Pod) bool {
	_, ok := p.Annotations[v1.MirrorPodAnnotationKey]
	return ok
}

// Static says whether the pod comes from a manifest of its node, by its
// annotations; its mirror in the API carries them too.
func Static(p *v1.Pod) bool {
	src := p.Annotations["kubernetes.io/config.source"]
	return src != "" && src != "api"
}

// Ready says whether the pod's Ready condition is true.
func Ready(p *v1.Pod) bool {
	c := Condition(p, v1.PodReady)
	return c != nil && c.Status == v1.ConditionTrue
}

// Condition returns the pod's condition of a type, or nil.
func Condition(p *v1.Pod, t v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Available says whether the pod has been ready for minReady seconds; if not
// yet, wait is how long until it may be (0 when it is not even ready).
func Available(p *v1.Pod, minReady int32, now time.Time) (ok bool, wait time.Duration) {
	c := Condition(p, v1.PodReady)
	if c == nil || c.Status != v1.ConditionTrue {
		return false, 0
	}
	if minReady == 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	left := c.LastTransitionTime.Add(time.Duration(minReady) * time.Second).Sub(now)
	return left <= 0, max(left, 0)
}

// NodeReady says whether the node's Ready condition is true.
func NodeReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// PodCIDRs are the CIDRs of the node's pods, also where only the older
// field names one.
func PodCIDRs(n *v1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// Toleration returns the first toleration that tolerates a taint, or nil. The
// library decides, with the operators Lt and Gt of KEP-5471; a taint or
// toleration of them that is no number matches nothing.
func Toleration(list []v1.Toleration, taint *v1.Taint) *v1.Toleration {
	for i := range list {
		if list[i].ToleratesTaint(klog.Logger{}, taint, true) {
			return &list[i]
		}
	}
	return nil
}

// Tolerates says whether any toleration tolerates a taint.
func Tolerates(list []v1.Toleration, taint *v1.Taint) bool { return Toleration(list, taint) != nil }
