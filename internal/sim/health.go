package sim

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// How many nodes the node health controller marks Unknown at a time, how many
// it taints beside that, and of how many it marks the pods.
const healthMarkers, healthFollowers, healthSilencers = 16, 6, 6

// healthShell drives the production core of internal/nodes/health in virtual time:
// it feeds the Monitor, asks its verdicts what has to be written, and makes the
// writes as slowly as the API of the scenario takes them.
type healthShell struct {
	w       *simulation
	monitor *health.Monitor
	// urgent marks silent nodes Unknown; rest taints them, unready marks their
	// pods.
	urgent, rest, unready pool
	// deaf says that the watch on leases tells nothing.
	deaf   bool
	wakeAt time.Duration // when an Advance is planned, -1: not
	life   uint64
}

// start makes a Monitor that knows nothing but what the API lists.
func (h *healthShell) start() {
	h.monitor = health.NewMonitor(h.w.set.health)
	h.wakeAt, h.deaf = -1, false
	h.list()
	h.observe(health.Event{Kind: health.Synced})
}

func (h *healthShell) stop() {
	h.life++
	h.urgent.reset()
	h.rest.reset()
	h.unready.reset()
	for _, n := range h.w.nodes {
		n.marking, n.following, n.silencing = false, false, false
	}
}

// list tells the Monitor everything that the API has.
func (h *healthShell) list() {
	for _, n := range h.w.nodes {
		if n.deleted {
			h.observe(health.Event{Kind: health.NodeGone, Node: n.obj.Name})
			continue
		}
		h.seeNode(n)
	}
	h.listLeases()
}

func (h *healthShell) listLeases() {
	for _, n := range h.w.nodes {
		if !n.deleted {
			h.observe(health.Event{Kind: health.LeaseSeen, Node: n.obj.Name, Renewed: clustermodel.Epoch.Add(n.renewed),
				Lasts: time.Duration(h.w.set.leaseSeconds) * time.Second})
		}
	}
}

func (h *healthShell) observe(e health.Event) {
	if h.w.down > 0 {
		return
	}
	if h.monitor.Observe(h.w.Time(), e) {
		h.plan(h.w.Now)
	}
}

func (h *healthShell) seeNode(n *node) {
	h.observe(health.Event{Kind: health.NodeSeen, Node: n.obj.Name, View: health.ViewOf(n.obj)})
	if _, changed := health.NoSchedule(n.obj, metav1.Time{}); changed {
		h.queue(n)
	}
}

// plan sets the time of the next Advance, unless an earlier one is set.
func (h *healthShell) plan(at time.Duration) {
	if h.wakeAt >= 0 && h.wakeAt <= at {
		return
	}
	h.wakeAt = at
	life := h.life
	h.w.At(at, func() {
		if h.life == life && h.wakeAt == at {
			h.wakeAt = -1
			h.advance()
		}
	})
}

func (h *healthShell) advance() {
	for _, d := range h.monitor.Advance(h.w.Time()) {
		h.w.notes.decision(h.w, d)
		switch d.Kind {
		case health.Confirm:
			h.confirm()
		case health.StaleWatch:
			h.watchAgain()
		}
		if n := h.w.byName[d.Node]; n != nil {
			h.queue(n)
		}
	}
	if next := h.monitor.Next(); !next.IsZero() {
		h.plan(max(next.Sub(clustermodel.Epoch), h.w.Now))
	}
}

// confirm lists the leases from the API itself.
func (h *healthShell) confirm() {
	life := h.life
	took := h.w.api.latency()
	h.w.After(took, func() {
		if h.life != life {
			return
		}
		answer := health.Event{Kind: health.Confirmed, Took: took}
		if h.w.api.down > 0 {
			answer.Err = "listing node leases: connection refused"
		} else {
			h.listLeases()
		}
		h.observe(answer)
	})
}

// watchAgain begins another lease watch in place of one that told nothing.
func (h *healthShell) watchAgain() {
	life := h.life
	h.w.After(h.w.api.latency(), func() {
		if h.life == life {
			h.deaf = false
			h.listLeases()
		}
	})
}

// queue hands a node to the writers that mark it, and by them to the others.
func (h *healthShell) queue(n *node) { h.hand(n, &n.marking, &h.urgent, h.mark) }

// hand gives a node to a pool once: anyone who asks while it waits is served with
// it.
func (h *healthShell) hand(n *node, waiting *bool, to *pool, next func(*node) (writeKind, func())) {
	if *waiting || h.w.down > 0 {
		return
	}
	*waiting = true
	to.add(func(done func()) { h.write(n, waiting, next, done) })
}

// write makes a node fit its verdict, one API write after the other. Each looks
// at what is there again.
func (h *healthShell) write(n *node, waiting *bool, next func(*node) (writeKind, func()), done func()) {
	life := h.life
	var kind writeKind
	var commit func()
	if v := h.monitor.Verdict(n.obj.Name); v.Known && !n.deleted {
		kind, commit = next(n)
	}
	if commit == nil {
		*waiting = false
		done()
		return
	}
	h.w.api.do(kind, func() {
		if h.life != life {
			return // the writer was stopped before the answer
		}
		if !n.deleted {
			commit()
		}
		h.write(n, waiting, next, done)
	})
}

func (h *healthShell) now() metav1.Time { return clustermodel.Seconds(h.w.Time()) }

// mark makes the conditions of a silent node Unknown.
func (h *healthShell) mark(n *node) (writeKind, func()) {
	set := h.monitor.Verdict(n.obj.Name).Conditions(n.obj, h.now())
	if len(set) == 0 {
		h.hand(n, &n.following, &h.rest, h.follow)
		h.hand(n, &n.silencing, &h.unready, h.markPods)
		return 0, nil
	}
	return writeNodeStatus, func() {
		h.w.notes.unknown(h.w, n)
		h.w.writeNode(n, func(o *v1.Node) { o.Status.Conditions = clustermodel.Merged(o.Status.Conditions, set) })
	}
}

// markPods takes a node's next pod out of service.
func (h *healthShell) markPods(n *node) (writeKind, func()) {
	v := h.monitor.Verdict(n.obj.Name)
	for _, p := range n.pods {
		if v.MarksPod(&p.obj) {
			return writePodStatus, func() { h.markPod(p) }
		}
	}
	return 0, nil
}

// follow makes a node's taints fit its verdict.
func (h *healthShell) follow(n *node) (writeKind, func()) {
	acquire := func() bool {
		ok := h.monitor.ReserveTaint(h.w.Time(), n.obj.Name, "")
		if !ok {
			h.plan(h.w.Now) // it may have lost its turn
		}
		return ok
	}
	write := h.monitor.Verdict(n.obj.Name).Taints(n.obj, h.now(), acquire)
	if !write.Changed {
		return 0, nil
	}
	return writeNodeTaints, func() {
		before := n.obj
		h.w.writeNode(n, func(o *v1.Node) { o.Spec.Taints = write.Taints })
		h.w.notes.taints(h.w, n, before)
		if write.Adds {
			h.observe(health.Event{Kind: health.NodeRead, Node: n.obj.Name, View: health.ViewOf(n.obj)})
			h.observe(health.Event{Kind: health.Tried, Node: n.obj.Name})
		}
	}
}

// markPod takes a pod out of service because no one vouches for its node. An
// agent that still talks disagrees, and says so.
func (h *healthShell) markPod(p *pod) {
	if p.gone || !p.ready() {
		return
	}
	h.w.api.count(writeEvent)
	p.setReady(v1.ConditionFalse, h.w.Time())
	h.w.refreshPod(p)
	h.w.After(h.w.sc.Cluster.WatchLatency.D(), func() { h.w.syncPod(p) })
}

// seePod is what a pod that just became ready means for its node: what a
// silent node's pod says cannot be true.
func (h *healthShell) seePod(p *pod) {
	if h.w.down > 0 || p.gone || p.node == nil {
		return
	}
	if v := h.monitor.Verdict(p.node.obj.Name); v.MarksUpdatedPod(&p.obj, &p.obj) {
		h.queue(p.node)
	}
}
