package faulttest

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/podutil"
)

// verdict looks at a world that had long enough to come to rest.
func (f *invariantChecker) verdict() {
	f.w.store.mu.Lock()
	defer f.w.store.mu.Unlock()
	w := f.w
	anyReady := time.Since(f.anyReady()) == 0
	for _, m := range w.hosts {
		n, _ := w.store.objects[nodes][m.name].(*v1.Node)
		if n == nil {
			if m.Alive() {
				f.breaks("convergence", "%s lives and has no Node", m.name)
			}
			f.podsAtRest(m, false, true)
			continue
		}
		want, good := v1.ConditionTrue, m.Alive() && m.NotReady == 0
		switch {
		case !m.Alive():
			want = v1.ConditionUnknown
		case m.NotReady > 0:
			want = v1.ConditionFalse
		}
		if clustermodel.NodeReady(n) != want {
			f.breaks("convergence", "%s is %s, not %s", m.name, clustermodel.NodeReady(n), want)
		}
		if good && len(n.Spec.Taints) > len(own(n)) {
			f.breaks("convergence", "%s is ready and has taints %v", m.name, n.Spec.Taints)
		}
		if !good && !f.stopped(m.zone) && clustermodel.Evicts(n) != anyReady {
			f.breaks("convergence", "%s is not ready, another is: %v, and it has taints %v", m.name, anyReady, n.Spec.Taints)
		}
		if n.Spec.PodCIDR == "" {
			f.breaks("convergence", "%s has no range", m.name)
		}
		f.podsAtRest(m, good, !good && clustermodel.Evicts(n))
	}
}

// stopped says that the zone is too much disrupted for new taints.
func (f *invariantChecker) stopped(zone string) bool {
	ready, not := 0, 0
	for _, m := range f.w.hosts {
		switch {
		case m.zone != zone || f.w.store.objects[nodes][m.name] == nil:
		case m.Alive() && m.NotReady == 0:
			ready++
		default:
			not++
		}
	}
	return tooMany(ready, not)
}

func (f *invariantChecker) podsAtRest(m *host, ready, end bool) {
	for _, name := range sortedKeys(f.w.store.objects[pods]) {
		p := f.w.store.objects[pods][name].(*v1.Pod)
		switch {
		case nodeOfPod(name) != m.name:
		case f.w.store.objects[nodes][m.name] == nil:
			f.breaks("convergence", "%s is still there, its node is not", name)
		case podutil.Ready(p) != ready:
			f.breaks("convergence", "%s counts as ready: %v, on a node that is: %v", name, podutil.Ready(p), ready)
		case end && p.DeletionTimestamp == nil:
			f.breaks("forgotten", "%s bears its node's taint for %d s only and is still there", name,
				*p.Spec.Tolerations[0].TolerationSeconds)
		}
	}
}

// short is what the rules look at of an object.
func short(o object) string {
	switch o := o.(type) {
	case *v1.Node:
		return fmt.Sprintf("Ready %q, %s, taints %v", clustermodel.NodeReady(o), o.Spec.PodCIDR, o.Spec.Taints)
	case *v1.Pod:
		return fmt.Sprintf("ready %v, going %v", podutil.Ready(o), o.DeletionTimestamp != nil)
	}
	return "gone"
}
