// Package eviction deletes pods that do not tolerate their node's NoExecute
// taints, at the time their tolerations run out.
package eviction

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// Plan is what follows from a node's taints for one pod.
type Plan struct {
	// Evict says whether the pod has to go at all, At when.
	Evict bool
	At    time.Time
	// Why names the taint that decided.
	Why string
}

// decide looks at NoExecute taints only. The first toleration in the list that
// fits a taint counts for it; a taint without one means now, and of several
// tolerated for a time the shortest wins, each counted from since: the
// moment its taint was put on. Counting from the taint and not
// from when someone looked makes a restart harmless and lets an edited
// toleration move the time.
func decide(taints []v1.Taint, tolerations []v1.Toleration, since func(v1.Taint) time.Time) Plan {
	var p Plan
	for _, t := range taints {
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		by := podutil.Toleration(tolerations, &t)
		var seconds *int64
		tolerated, at := by != nil, since(t)
		if tolerated {
			seconds = by.TolerationSeconds
		}
		switch {
		case tolerated && seconds == nil:
			continue
		case tolerated:
			at = at.Add(time.Duration(max(0, *seconds)) * time.Second)
		}
		if !p.Evict || at.Before(p.At) {
			p = Plan{Evict: true, At: at, Why: fmt.Sprintf("taint %s=%s:NoExecute, tolerated: %t", t.Key, t.Value, tolerated)}
			if seconds != nil {
				p.Why += fmt.Sprintf(" for %d s", *seconds)
			}
		}
	}
	return p
}

// For is Decide for a pod and its node at now. A taint counts from when it was
// added, or from when the pod came to the node if that was later; without such
// a time, or with one still to come, from first: when the pod was first seen
// under a taint.
func For(p *v1.Pod, n *v1.Node, first, now time.Time) Plan {
	came := bound(p)
	return decide(n.Spec.Taints, p.Spec.Tolerations, func(t v1.Taint) time.Time {
		if t.TimeAdded == nil || t.TimeAdded.After(now) {
			return first
		}
		if came.After(t.TimeAdded.Time) && !came.After(now) {
			return came
		}
		return t.TimeAdded.Time
	})
}

// bound is when the pod got its node.
func bound(p *v1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return p.CreationTimestamp.Time
}

// Due says whether the pod has to go now, given pod and node as they are in the
// API at this moment.
func Due(p *v1.Pod, n *v1.Node, first, now time.Time) (Plan, bool) {
	plan := For(p, n, first, now)
	return plan, plan.Evict && !plan.At.After(now)
}
