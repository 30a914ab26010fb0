package sim

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// How often a drain looks again, as kubectl does, and how soon a pod that a
// budget holds back is asked for again.
const (
	drainLook  = time.Second
	drainAgain = 5 * time.Second
)

// upgrade takes nodes through cordon, drain, reboot and uncordon, so many at a
// time.
type upgrade struct {
	*upgradePlan
	w     *simulation
	queue []*node
	left  int
	// late counts nodes whose drain timed out.
	late int
}

func (w *simulation) upgrade(spec *upgradePlan, nodes []*node) {
	u := &upgrade{upgradePlan: spec, w: w, queue: nodes, left: len(nodes)}
	how := "drained first"
	if u.NoDrain {
		how = "without drain"
	}
	w.notes.fact(w, "event", fmt.Sprintf("rolling reboot of %s, %d at a time, %s", &u.selection, u.Batch, how))
	for range min(u.Batch, len(nodes)) {
		u.next()
	}
}

func (u *upgrade) next() {
	if len(u.queue) == 0 {
		return
	}
	n := u.queue[0]
	u.queue = u.queue[1:]
	u.cordon(n, true, func() {
		if u.NoDrain {
			u.reboot(n)
			return
		}
		u.drain(n, u.w.Now, -drainAgain)
	})
}

func (u *upgrade) cordon(n *node, yes bool, then func()) {
	u.w.api.do(writeNodeTaints, func() {
		u.w.writeNode(n, func(o *v1.Node) { o.Spec.Unschedulable = yes })
		then()
	})
}

// drain evicts what it may and comes back until nothing is left.
func (u *upgrade) drain(n *node, since, asked time.Duration) {
	left := 0
	ask := u.w.Now-asked >= drainAgain
	for _, p := range slices.Clone(n.pods) {
		if p.set.ds != nil {
			continue
		}
		left++
		if !ask || p.obj.DeletionTimestamp != nil {
			continue
		}
		if max := p.set.spec.MaxUnavailable; max > 0 && p.ready() && p.set.spec.Replicas-p.set.available() >= max {
			continue
		}
		// Asking for an eviction takes effect at once, so that the next
		// question to the same budget sees it.
		u.w.api.count(writePodDelete)
		u.w.notes.drained++
		u.w.deletePod(p)
	}
	if ask {
		asked = u.w.Now
	}
	switch {
	case left == 0:
		u.reboot(n)
	case u.DrainTimeout > 0 && u.w.Now-since >= u.DrainTimeout.D():
		u.late++
		u.reboot(n)
	default:
		u.w.After(drainLook, func() { u.drain(n, since, asked) })
	}
}

// reboot goes on to the next node when this one is ready and free again.
func (u *upgrade) reboot(n *node) {
	w := u.w
	w.change(n, func(n *node) { n.Off++ })
	w.After(time.Second, func() { w.change(n, func(n *node) { n.Off-- }) })
	u.await(n)
}

func (u *upgrade) await(n *node) {
	u.w.After(drainLook, func() {
		ready := slices.ContainsFunc(n.obj.Status.Conditions,
			func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
		if !ready || !n.talks(u.w.Now) {
			u.await(n)
			return
		}
		u.cordon(n, false, func() {
			if u.left--; u.left == 0 {
				text := fmt.Sprintf("rolling reboot of %s is done", &u.selection)
				if u.late > 0 {
					text += fmt.Sprintf("; %s rebooted with pods that their budgets held back", count(u.late, "node"))
				}
				u.w.notes.fact(u.w, "event", text)
			}
			u.next()
		})
	})
}
