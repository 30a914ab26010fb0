package sim

import (
	"time"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/nodes/eviction"
)

// evictors is how many pods are deleted for taints at a time.
const evictors = 4

// evictor is the shell of internal/nodes/eviction in virtual time.
type evictor struct {
	w    *simulation
	pool pool
	// marked are pods under a taint that will evict them, with when this was
	// first seen.
	marked map[*pod]time.Time
}

func (e *evictor) seeNode(n *node) {
	for _, p := range n.pods {
		e.consider(p)
	}
}

// due is when a pod has to go for its node's taints; ok is false for never.
func (e *evictor) due(p *pod) (at time.Duration, ok bool) {
	if p.gone || p.node == nil || p.obj.DeletionTimestamp != nil {
		return 0, false
	}
	now := e.w.Time()
	first, marked := e.marked[p]
	if !marked {
		first = now
	}
	plan := eviction.For(&p.obj, p.node.obj, first, now)
	switch {
	case plan.Evict && !marked:
		e.marked[p] = first
	case !plan.Evict && marked:
		delete(e.marked, p)
	}
	return plan.At.Sub(clustermodel.Epoch), plan.Evict
}

// stop forgets what only the controller's process knew.
func (e *evictor) stop() {
	e.pool.reset()
	clear(e.marked)
}

// consider sets the time at which a pod is looked at again.
func (e *evictor) consider(p *pod) {
	at, ok := e.due(p)
	if !ok {
		p.evictAt = 0
		return
	}
	at = max(at, e.w.Now, 1)
	if p.evictAt == at {
		return
	}
	p.evictAt = at
	e.w.At(at, func() {
		if p.evictAt == at && e.w.down == 0 {
			e.pool.add(func(done func()) { e.evict(p, done) })
		}
	})
}

// evict looks at pod and node as they are now, and deletes.
func (e *evictor) evict(p *pod, done func()) {
	p.evictAt = 0
	if at, ok := e.due(p); !ok || at > e.w.Now {
		done()
		return
	}
	w := e.w
	w.api.count(writeEvent)
	w.api.do(writePodStatus, func() {
		w.api.do(writePodDelete, func() {
			delete(e.marked, p)
			if !p.gone && p.obj.DeletionTimestamp == nil {
				w.notes.evicted(w, p)
				w.deletePod(p)
			}
			done()
		})
	})
}
