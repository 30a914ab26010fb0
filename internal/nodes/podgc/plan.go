// Package podgc deletes pods that no one else will: those of nodes that are
// gone, those that were deleted before they had a node, those stuck on a node
// that is out of service, and finished ones over a limit.
package podgc

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/heap"
	"github.com/berth-dev/berth/internal/podutil"
)

// Reason is why a pod goes, as metrics name it.
type Reason string

// The four reasons.
const (
	None         Reason = ""
	Terminated   Reason = "terminated"
	Orphaned     Reason = "orphaned"
	Unscheduled  Reason = "unscheduled"
	OutOfService Reason = "out-of-service"
)

// Quarantine is how long a node must be missing before its pods go: a node may
// be deleted and made again, and a cache may be late.
const Quarantine = 40 * time.Second

// Node is what is known of the node a pod is bound to.
type Node struct {
	Known bool
	// Missing is since when it is not known, by the clock of who looks.
	Missing time.Time
	// Dead says that someone vouched for its being out of service, and that
	// it is not ready.
	Dead bool
}

// NodeOf reads a Node.
func NodeOf(n *v1.Node) Node {
	return Node{Known: true, Dead: outOfService(n) && !podutil.NodeReady(n)}
}

func outOfService(n *v1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == v1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// Evaluate returns why the pod has to be deleted, and from when on; None if it stays.
// A pod deleted with a grace period of 0 only waits for its finalizers and is left to
// them.
func Evaluate(p *v1.Pod, n Node) (why Reason, from time.Time) {
	terminating := p.DeletionTimestamp != nil
	if grace := p.DeletionGracePeriodSeconds; terminating && grace != nil && *grace == 0 {
		return None, time.Time{}
	}
	switch {
	case p.Spec.NodeName == "":
		if terminating {
			return Unscheduled, time.Time{}
		}
	case !n.Known:
		return Orphaned, n.Missing.Add(Quarantine)
	case n.Dead && terminating:
		return OutOfService, time.Time{}
	}
	return None, time.Time{}
}

// finished are the finished pods there are, in the order they should go:
// evicted ones first, then the oldest. Make it with newFinished. It is not safe
// for concurrent use.
type finished struct {
	byKey map[string]*entry
	queue *heap.Heap[*entry]
}

type entry struct {
	key     string
	evicted bool
	created time.Time
	// place in the queue; in none once it was picked, until it is gone.
	place heap.Place
}

// newFinished returns an empty one.
func newFinished() *finished {
	return &finished{byKey: map[string]*entry{}, queue: heap.New(first, func(e *entry) *heap.Place { return &e.place })}
}

// first tells whether a should go before b.
func first(a, b *entry) bool {
	switch {
	case a.evicted != b.evicted:
		return a.evicted
	case !a.created.Equal(b.created):
		return a.created.Before(b.created)
	}
	return a.key < b.key
}

// Observe adds a pod, or notes its change.
func (f *finished) Observe(key string, p *v1.Pod) {
	e := f.byKey[key]
	if !podutil.Terminal(p) {
		f.Forget(key)
		return
	}
	evicted := p.Status.Reason == "Evicted"
	if e == nil {
		e = &entry{key: key, evicted: evicted, created: p.CreationTimestamp.Time}
		f.byKey[key] = e
		f.queue.Put(e)
		return
	}
	if e.place.In() && (e.evicted != evicted || !e.created.Equal(p.CreationTimestamp.Time)) {
		e.evicted, e.created = evicted, p.CreationTimestamp.Time
		f.queue.Put(e)
	}
}

// Forget drops a pod that is gone.
func (f *finished) Forget(key string) {
	e := f.byKey[key]
	if e == nil {
		return
	}
	delete(f.byKey, key)
	f.queue.Remove(e)
}

// TakeExcess takes out the pods beyond the limit; each is returned once. A limit of 0
// or less means no limit.
func (f *finished) TakeExcess(limit int) (keys []string) {
	for limit > 0 && f.queue.Len() > limit {
		keys = append(keys, f.queue.Pop().key)
	}
	return keys
}

// Picked says that the pod was picked and is not gone yet.
func (f *finished) Picked(key string) bool {
	e := f.byKey[key]
	return e != nil && !e.place.In()
}
