package storm

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// verdict looks at a world that had long enough to come to rest.
func (f *referee) verdict() {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	w := f.w
	anyReady := time.Since(f.anyReady()) == 0
	for _, m := range w.machines {
		n, _ := w.store.objects[nodes][m.name].(*v1.Node)
		if n == nil {
			if m.alive {
				f.breaks("convergence", "%s lives and has no Node", m.name)
			}
			f.podsAtRest(m, false, true)
			continue
		}
		want, good := v1.ConditionTrue, m.alive && !m.broken
		switch {
		case !m.alive:
			want = v1.ConditionUnknown
		case m.broken:
			want = v1.ConditionFalse
		}
		if statusOf(n) != want {
			f.breaks("convergence", "%s is %s, not %s", m.name, statusOf(n), want)
		}
		if good && len(n.Spec.Taints) > len(own(n)) {
			f.breaks("convergence", "%s is ready and has taints %v", m.name, n.Spec.Taints)
		}
		if !good && !f.stopped(m.zone) && expelling(n) != anyReady {
			f.breaks("convergence", "%s is not ready, another is: %v, and it has taints %v", m.name, anyReady, n.Spec.Taints)
		}
		if n.Spec.PodCIDR == "" {
			f.breaks("convergence", "%s has no range", m.name)
		}
		f.podsAtRest(m, good, !good && expelling(n))
	}
}

// stopped says that the zone is too much disrupted for new taints.
func (f *referee) stopped(zone string) bool {
	ready, not := 0, 0
	for _, m := range f.w.machines {
		switch {
		case m.zone != zone || f.w.store.objects[nodes][m.name] == nil:
		case m.alive && !m.broken:
			ready++
		default:
			not++
		}
	}
	return tooMany(ready, not)
}

func (f *referee) podsAtRest(m *machine, ready, end bool) {
	for _, name := range sortedKeys(f.w.store.objects[pods]) {
		p := f.w.store.objects[pods][name].(*v1.Pod)
		switch {
		case nodeOfPod(name) != m.name:
		case f.w.store.objects[nodes][m.name] == nil:
			f.breaks("convergence", "%s is still there, its node is not", name)
		case podReady(p) != ready:
			f.breaks("convergence", "%s counts as ready: %v, on a node that is: %v", name, podReady(p), ready)
		case end && p.DeletionTimestamp == nil:
			f.breaks("forgotten", "%s bears its node's taint for %d s only and is still there", name, *p.Spec.Tolerations[0].TolerationSeconds)
		}
	}
}

// short is what the rules look at of an object.
func short(o object) string {
	switch o := o.(type) {
	case *v1.Node:
		return fmt.Sprintf("Ready %q, %s, taints %v", statusOf(o), o.Spec.PodCIDR, o.Spec.Taints)
	case *v1.Pod:
		return fmt.Sprintf("ready %v, going %v", podReady(o), o.DeletionTimestamp != nil)
	}
	return "gone"
}
