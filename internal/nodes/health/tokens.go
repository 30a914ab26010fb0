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
// than its rate allows, by the API's own history, however often a controller starts:
//
//   - A token has one holder in its zone at a time. ReserveTaint allows a write to the
//     holder only, and no other gets a token until Tried.
//   - Writes carry the version they were computed from. A write whose answer was
//     lost may have been made or may still be: the same token then serves for the
//     same version only, of which the API accepts one write.
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

// ReserveTaint reserves the zone's token for a NoExecute taint on a node that has none
// of ours, computed from the given resourceVersion. If it returns true, an event of
// kind Tried has to follow; if not, the node waits again and a decision tells its turn.
func (m *Monitor) ReserveTaint(now time.Time, name, version string) bool {
	n := m.nodes[name]
	if n == nil || n.token != holding {
		return false
	}
	z := n.zone
	otherVersion := n.uncertainVersion != "" && n.uncertainVersion != version
	if m.suspended || m.holding || z.bucket.rate <= 0 || z.writing != nil || otherVersion || z.tokenExpired(now) {
		m.fail(n)
		return false
	}
	z.writing, z.writingVersion = n, version
	return true
}

// fail takes the token from a node that could not use it: it waits again.
func (m *Monitor) fail(n *node) {
	n.becomeTokenless()
	m.becomeTokenLost(n)
}

// tried takes in how a write ended that ReserveTaint allowed.
func (m *Monitor) tried(now time.Time, e Event) {
	n := m.nodes[e.Node]
	if n == nil || n.zone.writing != n {
		return // it moved or went meanwhile
	}
	z := n.zone
	base := z.writingVersion
	if e.Outcome == NotDone {
		z.writing = nil // the token is as good as before
	} else {
		z.writeEnded(now, n)
	}
	switch e.Outcome {
	case Done:
		n.becomeTokenless()
	case Unsure:
		n.uncertainVersion = base
	}
	m.touch(n)
}

// writeEnded ends the node's write, if there is one, as made at this moment: the
// next token is a whole interval away.
func (z *zone) writeEnded(now time.Time, n *node) {
	if z.writing != n {
		return
	}
	z.writing = nil
	z.bucket.drain(now)
}

// tokenExpired reports whether the holder has had its token for as long as the next
// one takes to come: then it is the next node's turn.
func (z *zone) tokenExpired(now time.Time) bool { return !now.Before(z.lapse) }

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
		if h := z.holder; h != nil && z.writing == nil && z.tokenExpired(now) {
			m.fail(h)
			m.enqueue(h)
		}
		if z.holder == nil && z.writing == nil && z.waiting > 0 && z.bucket.take(now) {
			m.becomeHolder(now, z.first())
		}
		at, ok := z.bucket.next(now)
		switch {
		case z.writing != nil:
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
