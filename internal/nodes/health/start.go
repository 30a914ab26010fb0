package health

import (
	"slices"
	"time"
)

// lastRenewal is what a lease found at the start tells of the time before it.
type lastRenewal struct {
	at    time.Time     // when it was renewed, by the API's clock or else the node's
	lasts time.Duration // its duration
}

// upstreamLease is how long a lease lasts that does not say so.
const upstreamLease = 40 * time.Second

// lastRenewalOf reads the last renewal of a lease found at the start; by the API
// server's clock if it is known, else by the node's.
func lastRenewalOf(e Event) lastRenewal {
	t := lastRenewal{at: e.Written, lasts: e.Lasts}
	if t.at.IsZero() {
		t.at = e.Renewed
	}
	if t.lasts <= 0 {
		t.lasts = upstreamLease
	}
	return t
}

// beforeStart is a sign of life that no one here heard: it was found.
const beforeStart = "before this controller started, by the times of the leases"

// beginGraces lets silence count only from now on. The nodes may have been known
// for long: after an API outage each list waits for its own next try, up to a
// minute, and until the leases were listed no renewal could be heard.
func (m *Monitor) beginGraces(now time.Time) {
	for _, n := range m.nodes {
		if n.view.Ready != Missing && n.heard.Before(now) {
			n.heard = now // its timer may be early: that is seen when it is due
		}
	}
}

// judgeTraces begins the nodes' graces where the last controller's left off,
// as far as that can be known. A node was silent for at least as long as its
// last renewal is older than that of the node in the middle. Times are compared with
// each other and with nothing else: this side's clock may be off, and while the
// API was away all leases stood still, which is no silence of theirs. The middle
// and not the newest, since one clock may be ahead, and since an API that just
// came back has heard only the quickest.
//
// A clock may also be behind, and then a living node looks dead. So each node
// has time left to renew its lease: half of what it lasts, two intervals.
func (m *Monitor) judgeTraces(now time.Time) {
	traces := make([]int64, 0, len(m.before))
	for _, t := range m.before {
		traces = append(traces, t.at.UnixNano())
	}
	slices.Sort(traces)
	defer func() { m.before = nil }()
	if len(traces) == 0 {
		return
	}
	middle := time.Unix(0, traces[len(traces)/2])
	for _, n := range m.nodes {
		if n.view.Ready == Missing || n.by != firstSeen {
			continue
		}
		t, found := m.before[n]
		if !found {
			if n.view.Heartbeat.IsZero() {
				continue
			}
			t = lastRenewal{at: n.view.Heartbeat, lasts: upstreamLease}
		}
		silent := middle.Sub(t.at)
		if silent <= 0 {
			continue
		}
		n.heard, n.by, n.graceUntil = now.Add(-silent), beforeStart, now.Add(m.recoveryGrace(t.lasts))
		m.heap.set(&n.timer, m.deadline(n))
	}
}
