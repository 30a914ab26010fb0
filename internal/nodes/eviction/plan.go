// Package eviction deletes pods that do not tolerate their node's NoExecute
// taints, at the time their tolerations run out.
package eviction

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Plan is what follows from a node's taints for one pod.
type Plan struct {
	// Evict says whether the pod has to go at all, At when.
	Evict bool
	At    time.Time
	// Why names the taint that decided.
	Why string
}

// Decide looks at NoExecute taints only. The first toleration in the list that
// fits a taint counts for it; a taint without one means now, and of several
// tolerated for a time the shortest wins, each counted from since: the
// moment its taint was put on. Counting from the taint and not
// from when somebody looked makes a restart harmless and lets an edited
// toleration move the time.
func Decide(taints []v1.Taint, tolerations []v1.Toleration, since func(v1.Taint) time.Time) Plan {
	var p Plan
	for _, t := range taints {
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		seconds, tolerated := tolerates(tolerations, t)
		at := since(t)
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

func tolerates(list []v1.Toleration, taint v1.Taint) (seconds *int64, ok bool) {
	for _, t := range list {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			continue
		}
		switch t.Operator {
		case v1.TolerationOpExists:
		case "", v1.TolerationOpEqual:
			if t.Value != taint.Value {
				continue
			}
		default:
			continue
		}
		return t.TolerationSeconds, true
	}
	return nil, false
}
