package health

import "time"

// A node's life, as the Monitor sees it. Each state has one function that enters
// it, become*, which keeps the invariants that stand on the fields below.
//
//	          heard, or the API was away      heard, or zones resume
//	       ┌───────────────────────────┐  ┌─────────────────────────────┐
//	       ▼                           │  │                             │
//	   ┌───────┐  deadline passes   ┌──┴──┴───┐  API confirms,     ┌────┴───┐
//	──▶│ alive │───────────────────▶│ overdue │  or no need to ask │  lost  │
//	   └───────┘                    └────┬────┘───────────────────▶└────────┘
//	       ▲                             ┆          Ready counts as Unknown
//	       └── a heartbeat brings a lost node straight back to alive
//
// Beside it runs its need for a NoExecute taint where it has none (zone.go: one
// token bucket per zone, one holder at a time):
//
//	              needs a taint              first in the queue, bucket full
//	┌───────────┐───────────────▶┌─────────┐───────────────▶┌─────────┐
//	│ tokenless │                │ waiting │                │ holding │─▶ ReserveTaint, write
//	└───────────┘◀───────────────└─────────┘                └────┬────┘
//	      ▲        needs none                                    │
//	      └──────────────────────────────────────────────────────┘
//	        written, needs none any more, suspended, or failed in its turn
type node struct {
	name    string
	view    View
	seen    uint64 // resourceVersion of the Node that view is of
	met     uint64 // that of the first that was seen
	turned  uint64 // that of the first in which Ready was seen to be what it is; 0 if it was from the start
	renewed time.Time
	version uint64        // of the lease that said renewed
	lasts   time.Duration // the lease's duration
	zone    *zone         // nil once the node is forgotten
	counted Status        // as zone numbers count it: Missing = not at all, True, False

	// heard is the local time of the last heartbeat, by what it was.
	heard time.Time
	by    string
	// unheard is how long the API did not answer since heard. It does not count
	// as silence of the node's.
	unheard time.Duration
	// graceUntil is the earliest deadline, whenever the node was heard. A heartbeat
	// leaves it as it is.
	graceUntil time.Time
	// inRecoveryGrace: graceUntil was set because the API came back after heard.
	// False after each heartbeat, so the grace is given once in a silence.
	inRecoveryGrace bool
	// timer is in the heap exactly while the node is alive, at its deadline or
	// earlier.
	timer    timer
	liveness liveness

	tainting
	reporting
}

// tainting is the node's way to its NoExecute taint.
type tainting struct {
	token tokenState
	// ticket is the node's number in its zone's queue; 0 exactly while it is not
	// waiting. position is how many waited with it when it joined the queue.
	ticket   uint64
	position int
	// uncertainVersion is the resourceVersion of the Node from which a write with
	// the token was computed whose end is not known, "" if there is none.
	uncertainVersion string
}

// reporting is what Advance has reported of the node.
type reporting struct {
	// reported is the verdict, and waitReported whether the node waits for a token,
	// as the last Advance reported them. report says what came after.
	reported     Verdict
	waitReported bool
	report       report
}

// liveness is what is known of whether a node lives.
type liveness uint8

const (
	// alive: its deadline is still to come.
	alive liveness = iota
	// overdue: its deadline has passed, but the silence may be ours: it is in the
	// Monitor's confirmQueue, and counted in overdue.
	overdue
	// lost: its deadline has passed and the silence is its own; counted in the
	// Monitor's lost. Its conditions have to become Unknown.
	lost
)

// uncount takes the node out of the counts of its present state.
func (m *Monitor) uncount(n *node) {
	switch n.liveness {
	case overdue:
		m.overdue--
	case lost:
		m.lost--
	}
	n.liveness = alive
}

// becomeAlive follows a heartbeat or a new grace, which the fields that make the
// deadline tell already.
func (m *Monitor) becomeAlive(n *node) {
	m.uncount(n)
	if n.timer.index < 0 {
		m.heap.set(&n.timer, m.deadline(n))
	}
}

// becomeOverdue follows the deadline of a node that is alive; its timer has left
// the heap.
func (m *Monitor) becomeOverdue(n *node) {
	n.liveness = overdue
	m.overdue++
	m.confirmQueue = append(m.confirmQueue, n)
}

// becomeLost follows confirmation of an overdue node.
func (m *Monitor) becomeLost(n *node) {
	m.uncount(n)
	n.liveness = lost
	m.lost++
}

// becomeForgotten takes a deleted node out of all counts and out of the heap.
func (m *Monitor) becomeForgotten(n *node) {
	m.uncount(n)
	m.heap.remove(&n.timer)
}

// tokenState is how a node stands to its zone's NoExecute tokens.
type tokenState uint8

const (
	// tokenless: it needs no token, or has lost the one it had.
	tokenless tokenState = iota
	// waiting: it has a ticket in its zone's queue, and counts in zone.waiting.
	waiting
	// holding: it is its zone's holder and may write its taint until zone.lapse.
	holding
)

// becomeTokenless gives up the node's ticket or token. Others may have the next
// token when the bucket is full again.
func (n *node) becomeTokenless() {
	switch n.token {
	case waiting:
		n.ticket = 0
		n.zone.waiting--
	case holding:
		n.uncertainVersion = ""
		n.zone.holder = nil
	}
	n.token = tokenless
}

// becomeWaiting puts a tokenless node at the end of its zone's queue.
func (m *Monitor) becomeWaiting(n *node) {
	z := n.zone
	m.tickets++
	n.token, n.ticket = waiting, m.tickets
	z.queue = append(z.queue, ticket{n, n.ticket})
	z.waiting++
	n.position = z.waiting
}

// becomeHolder gives the zone's token to the node that waited longest; no one
// else holds it.
func (m *Monitor) becomeHolder(now time.Time, n *node) {
	z := n.zone
	n.becomeTokenless()
	n.token = holding
	z.holder, z.lapse = n, now.Add(z.bucket.interval())
	z.granted++
	m.touch(n)
	n.report = tokenGranted
}

// report is what happened to a node since the last Advance reported it.
type report uint8

const (
	// upToDate: nothing. In every other state the node is in Monitor.unreported.
	upToDate report = iota
	// needsReport: something its verdict depends on may have changed.
	needsReport
	// tokenLost: besides, it lost its token and has no taint.
	tokenLost
	// tokenGranted: besides, it got a token. The next report follows in the same
	// Advance, so nothing can happen in between.
	tokenGranted
)

// touch makes a node need a report, and counts it in its zone.
func (m *Monitor) touch(n *node) {
	if n.report == upToDate {
		n.report = needsReport
		m.unreported = append(m.unreported, n)
	}
	m.count(n)
}

// becomeTokenLost notes that the node could not use its token.
func (m *Monitor) becomeTokenLost(n *node) {
	m.touch(n)
	n.report = tokenLost
}

// becomeReported is entered by Advance alone; it returns what there was to report.
func (n *node) becomeReported() report {
	news := n.report
	n.report = upToDate
	return news
}
