package shell

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Active says whether a pod still counts as a replica: not ended, not being
// deleted.
func Active(p *v1.Pod) bool {
	return p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed && p.DeletionTimestamp == nil
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
