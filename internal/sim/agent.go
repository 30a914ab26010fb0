package sim

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/podutil"
)

// How soon an agent that can talk again does: its back-off is 7 s at most.
const reconnectWithin = 7 * time.Second

// renewShare and renewJitter are the agent's: a lease is renewed each quarter
// of its duration, up to 4 % later.
const (
	renewShare  = 0.25
	renewJitter = 0.04
)

func (w *simulation) startRenewals() {
	interval := w.renewEvery()
	for _, n := range w.nodes {
		n.renewed = -time.Duration(w.random.Float64() * float64(interval))
		n.nextPost = time.Duration(w.random.Float64() * float64(w.set.statusEvery))
		w.Schedule(n.renewed+interval, n)
	}
}

func (w *simulation) renewEvery() time.Duration {
	return time.Duration(float64(w.set.leaseSeconds) * renewShare * float64(time.Second))
}

// Do is the agent's turn to renew its lease, and to post its status if that is
// due. An agent that cannot reach the API tries again at the same pace.
func (n *node) Do() {
	w := n.w
	if n.deleted {
		return
	}
	interval := w.renewEvery()
	interval += time.Duration(w.random.Float64() * renewJitter * float64(interval))
	if n.RenewEvery > 0 {
		interval = n.RenewEvery
	}
	w.Schedule(w.Now+interval, n)
	w.renew(n)
}

// renew writes the lease once. A request that takes longer than the agent
// waits for it counts as not made.
func (w *simulation) renew(n *node) {
	if w.api.down > 0 || !n.talks(w.Now) {
		return
	}
	if w.api.extra > 0 {
		if w.api.latency() < w.renewEvery() {
			w.After(w.api.latency(), func() { w.renewed(n) })
		}
		return
	}
	w.renewed(n)
}

func (w *simulation) renewed(n *node) {
	if !n.talks(w.Now) {
		return
	}
	w.api.count(writeLease)
	n.renewed = w.Now
	if n.silent >= 0 {
		n.silent, n.detected = -1, false
		w.refreshNode(n)
	}
	if w.down == 0 && !w.health.deaf {
		w.health.observe(health.Event{Kind: health.LeaseSeen, Node: n.obj.Name, Renewed: w.Time()})
	}
	if w.Now >= n.nextPost {
		n.nextPost = w.Now + w.set.statusEvery
		w.post(n)
	}
}

// post writes the node's status as the agent sees it.
func (w *simulation) post(n *node) {
	w.api.do(writeNodeStatus, func() {
		if !n.talks(w.Now) {
			return
		}
		status := v1.ConditionTrue
		if n.NotReady > 0 {
			status = v1.ConditionFalse
		}
		w.writeNode(n, func(o *v1.Node) { o.Status.Conditions = conditions(status, w.Time(), n.obj.Status.Conditions) })
	})
}

// writeNode stores a changed Node and lets everybody know.
func (w *simulation) writeNode(n *node, change func(*v1.Node)) {
	if n.deleted {
		return
	}
	next := *n.obj
	change(&next)
	spec := next.Spec.Unschedulable != n.obj.Spec.Unschedulable || !slices.Equal(next.Spec.Taints, n.obj.Spec.Taints)
	n.obj = &next
	w.refreshNode(n)
	w.notify(func() { w.seeNode(n, spec) })
}

// seeNode is what the controllers do about a Node that changed.
func (w *simulation) seeNode(n *node, spec bool) {
	if n.deleted {
		return
	}
	w.health.seeNode(n)
	w.gc.seeNode(n)
	if spec {
		w.eviction.seeNode(n)
		w.scheduler.seeNode(n)
		for _, s := range w.sets {
			s.seeNode(n)
		}
	}
}

// speaksAgain is the agent after a silence: it renews its lease, corrects what
// the API says of the node, and looks after its pods.
func (w *simulation) speaksAgain(n *node) {
	if !n.talks(w.Now) {
		return
	}
	w.renew(n)
	w.post(n)
	w.syncPods(n)
}

// syncPods does for every pod of the node what the API asks for.
func (w *simulation) syncPods(n *node) {
	for _, p := range n.pods {
		w.syncPod(p)
	}
}

func (w *simulation) syncPod(p *pod) {
	n := p.node
	switch {
	case p.gone || n == nil || !n.talks(w.Now):
	case p.obj.DeletionTimestamp != nil:
		w.endPod(p)
	case !p.running && !p.done:
		w.startPod(p)
	case p.running && !p.ready():
		w.report(p)
	}
}

func (w *simulation) startPod(p *pod) {
	p.run++
	run := p.run
	w.After(w.vary(w.sc.Cluster.PodStart.D(), 0.5), func() {
		if p.gone || p.run != run || !p.node.Works(w.Now) || p.obj.DeletionTimestamp != nil {
			return
		}
		p.running = true
		w.refreshPod(p)
		w.report(p)
		if p.set.spec.Kind == kindJob {
			w.After(w.vary(p.set.spec.RunsFor.D(), 0.1), func() { w.finishPod(p, run) })
		}
	})
}

// report writes that a running pod is ready.
func (w *simulation) report(p *pod) {
	if !p.node.talks(w.Now) {
		return
	}
	w.api.do(writePodStatus, func() {
		if p.gone || !p.running || p.ready() || p.obj.DeletionTimestamp != nil || !p.node.talks(w.Now) {
			return
		}
		p.obj.Status.Phase = v1.PodRunning
		p.setReady(v1.ConditionTrue, w.Time())
		w.refreshPod(p)
		// A pod that gets ready on a node given up is marked again.
		w.notify(func() { w.health.seePod(p) })
	})
}

// finishPod ends a Job's pod that has done its work.
func (w *simulation) finishPod(p *pod, run uint32) {
	if p.gone || !p.running || p.run != run {
		return
	}
	p.running, p.done = false, true
	w.refreshPod(p)
	w.api.do(writePodStatus, func() {
		if p.gone || !p.node.talks(w.Now) || p.obj.DeletionTimestamp != nil {
			return
		}
		p.obj.Status.Phase = v1.PodSucceeded
		p.setReady(v1.ConditionFalse, w.Time())
		w.scheduler.snap.RemovePod(p.obj.UID)
		w.podChanged(p)
	})
}

// endPod is the agent's part of a deletion.
func (w *simulation) endPod(p *pod) {
	if p.ending {
		return
	}
	p.ending = true
	w.After(w.vary(w.sc.Cluster.PodStop.D(), 0.5), func() {
		p.ending = false
		if p.gone || !p.node.Works(w.Now) {
			return
		}
		p.running = false
		w.refreshPod(p)
		if p.node.talks(w.Now) {
			w.api.do(writePodDelete, func() { w.removePod(p) })
		}
	})
}

// deletePod is what a DELETE does to a pod: it goes at once if no agent has to
// agree, and else when that has ended it.
func (w *simulation) deletePod(p *pod) {
	switch {
	case p.gone:
	case p.node == nil || p.node.deleted || podutil.Terminal(&p.obj):
		w.removePod(p)
	case p.obj.DeletionTimestamp == nil:
		at := metav1.NewTime(w.Time().Add(30 * time.Second))
		p.obj.DeletionTimestamp = &at
		w.podChanged(p)
		w.notify(func() { w.gc.look(p) })
		w.After(w.sc.Cluster.WatchLatency.D(), func() { w.syncPod(p) })
	}
}

// removePod takes a pod out of the API.
func (w *simulation) removePod(p *pod) {
	if p.gone {
		return
	}
	p.gone = true
	p.run++
	w.pods[p.number] = nil
	if p.node != nil {
		p.node.pods = without(p.node.pods, p)
	}
	p.set.pods = without(p.set.pods, p)
	w.refreshPod(p)
	w.notify(func() {
		w.scheduler.podGone(p)
		p.set.changed()
	})
}

// podChanged is what its owner does about a pod that was deleted or ended. No
// owner acts on readiness: that only matters to rollouts, and there are none.
func (w *simulation) podChanged(p *pod) {
	w.refreshPod(p)
	w.notify(p.set.changed)
}

func without(list []*pod, p *pod) []*pod {
	i := slices.Index(list, p)
	if i < 0 {
		return list
	}
	return slices.Delete(list, i, i+1)
}
