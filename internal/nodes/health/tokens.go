package health

import (
	"cmp"
	"slices"
	"time"
)

// How NoExecute taints keep to their zone's rate, whatever happens between this
// controller and the API: a taint is written where there is none only with a
// token, each token serves one successful write at most, and the bucket fills
// again only from the end of that write. So two taints of a zone are never closer
// than its rate allows, by the API's own history, over all lives of a controller:
//
//   - A token has one holder in its zone at a time. Spend allows a write to the
//     holder only, and no other gets a token until Tried.
//   - Writes carry the version they were computed from. A write whose answer was lost may have
//     been made or may still be: the same token then serves for the same version
//     only, of which the API accepts one write.
//   - What is seen of a node says whether it has a taint, never whether it may get
//     one. Late word of own writes can therefore not bring back what was taken off.

// Outcome is how a write ended.
type Outcome uint8

// Done was answered with success. NotDone is known to have changed nothing: the
// node was of another version. Unsure is any other end.
const (
	Done Outcome = iota
	NotDone
	Unsure
)

// Spend asks whether a NoExecute taint may be written now to a node that has none
// of ours, computed from the given resourceVersion. If so, an event of kind Tried
// has to follow; if not, the node gets its turn later and is told of it by a
// decision.
func (m *Monitor) Spend(now time.Time, name, version string) bool {
	n := m.nodes[name]
	if n == nil || !n.permit {
		return false
	}
	z := n.zone
	if m.suspended || m.holding || z.bucket.rate <= 0 || z.flying != nil || n.unsure != "" && n.unsure != version || z.lapsed(now) {
		m.fail(n)
		return false
	}
	z.flying, z.base = n, version
	return true
}

// fail takes the token from a node that could not use it: it waits anew.
func (m *Monitor) fail(n *node) {
	n.dropPermit()
	n.failed = true
	m.touch(n)
}

// tried takes in how a write ended that Spend allowed.
func (m *Monitor) tried(now time.Time, e Event) {
	n := m.nodes[e.Node]
	if n == nil || n.zone.flying != n {
		return // it moved or went meanwhile
	}
	z := n.zone
	base := z.base
	if e.Outcome == NotDone {
		z.flying = nil // the token is as good as before
	} else {
		z.landed(now, n)
	}
	switch e.Outcome {
	case Done:
		n.dropPermit()
	case Unsure:
		n.unsure = base
	}
	m.touch(n)
}

// landed ends the node's write, if there is one, as made at this moment: the
// next token is a whole interval away.
func (z *zone) landed(now time.Time, n *node) {
	if z.flying != n {
		return
	}
	z.flying = nil
	z.bucket.drain(now)
}

// dropPermit takes away the node's token, if it has one. Others may have the
// next when the bucket is full again.
func (n *node) dropPermit() {
	if n.permit {
		n.permit, n.unsure = false, ""
		n.zone.holder = nil
	}
}

// lapsed says that the holder had its token for as long as another takes to
// come: now it is the next one's turn.
func (z *zone) lapsed(now time.Time) bool { return !now.Before(z.lapse) }

// grant spends tokens on those who wait, and sets the timer for the next.
func (m *Monitor) grant(now time.Time) {
	var open []*zone
	for _, z := range m.zones {
		if z.waiting == 0 && z.holder == nil || m.holding {
			m.heap.remove(&z.timer)
			continue
		}
		open = append(open, z)
	}
	slices.SortFunc(open, func(a, b *zone) int { return cmp.Compare(a.name, b.name) })
	for _, z := range open {
		if h := z.holder; h != nil && z.flying == nil && z.lapsed(now) {
			m.fail(h)
			m.enqueue(h)
		}
		if z.holder == nil && z.flying == nil && z.waiting > 0 && z.bucket.take(now) {
			n := z.pop()
			n.permit, n.retell = true, true
			z.holder, z.lapse = n, now.Add(z.bucket.interval())
			z.granted++
			m.touch(n)
		}
		at, ok := z.bucket.next(now)
		switch {
		case z.flying != nil:
			m.heap.remove(&z.timer) // its end will tell
		case z.holder != nil:
			m.heap.set(&z.timer, z.lapse)
		case z.waiting > 0 && ok:
			m.heap.set(&z.timer, at)
		default:
			m.heap.remove(&z.timer)
		}
	}
}
