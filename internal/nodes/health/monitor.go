package health

import (
	"fmt"
	"time"
)

// Settings are the rules. Rates are nodes a second in each zone.
type Settings struct {
	Grace, StartupGrace                 time.Duration
	EvictionRate, SecondaryEvictionRate float64
	// UnhealthyThreshold is the share of a zone's nodes not ready from which
	// it is partly disrupted; a zone of more than LargeZone nodes then goes on
	// at the secondary rate, a smaller one stops.
	UnhealthyThreshold float64
	LargeZone          int
	// ConfirmThreshold is the number of nodes past their deadline from which the
	// API is asked to confirm before any is marked, if they are at least a tenth
	// of all nodes: many silent nodes may be a broken watch.
	ConfirmThreshold int
	// QuietPeriod is how long no lease renewal at all may be seen before the API
	// is asked whether it answers. NewMonitor bounds it to two fifths of Grace: an
	// API that is away is noticed long before living nodes are past their deadlines.
	QuietPeriod time.Duration
	// ConfirmTimeout is how long the API may take to list the leases: a later
	// answer counts as none.
	ConfirmTimeout time.Duration
	// ConfirmTTL is how long an answer holds before the API is asked again.
	ConfirmTTL time.Duration
}

// Defaults are upstream's, and ours for what upstream does not have.
func Defaults() Settings {
	return Settings{Grace: 50 * time.Second, StartupGrace: 60 * time.Second, EvictionRate: 0.1, SecondaryEvictionRate: 0.01,
		UnhealthyThreshold: 0.55, LargeZone: 50,
		ConfirmThreshold: 3, QuietPeriod: 20 * time.Second, ConfirmTimeout: 5 * time.Second, ConfirmTTL: time.Second}
}

// Validate names the first setting that makes no sense.
func (s Settings) Validate() error {
	switch {
	case s.Grace <= 0 || s.StartupGrace <= 0:
		return fmt.Errorf("node monitor grace period %s, startup grace period %s: must be more than 0", s.Grace, s.StartupGrace)
	case s.EvictionRate < 0 || s.SecondaryEvictionRate < 0:
		return fmt.Errorf("node eviction rate %g, secondary %g: must not be negative", s.EvictionRate, s.SecondaryEvictionRate)
	case s.UnhealthyThreshold <= 0 || s.UnhealthyThreshold > 1:
		return fmt.Errorf("unhealthy zone threshold %g: must be more than 0 and at most 1", s.UnhealthyThreshold)
	case s.LargeZone < 0:
		return fmt.Errorf("large cluster size threshold %d: must not be negative", s.LargeZone)
	}
	return nil
}

// EventKind says what was observed.
type EventKind uint8

// NodeSeen is a Node as it is now, NodeGone its deletion, LeaseSeen its lease.
// NodeRead is a Node as the API answered with it: it counts only if the node is
// known, for its deletion may have been told already. Synced ends the initial
// list: nothing is decided before. Confirmed answers a Confirm decision.
// Unanswered says that the API did not answer who read the leases. Tried tells
// how a write ended that ReserveTaint allowed; what the API answered comes before it.
const (
	NodeSeen EventKind = iota
	NodeRead
	NodeGone
	LeaseSeen
	Synced
	Confirmed
	Unanswered
	Tried
)

// Event is one observation.
type Event struct {
	Kind    EventKind
	Node    string
	View    View          // NodeSeen, NodeRead
	Renewed time.Time     // LeaseSeen: renewTime, by the node's clock
	Written time.Time     // LeaseSeen: when the API took that, by its clock; zero if it does not say
	Lasts   time.Duration // LeaseSeen: the lease's duration, 0 for upstream's
	Version uint64        // of a Node or lease: its resourceVersion, 0 if it is not a number
	Took    time.Duration // Confirmed: how long the API took
	Err     string        // Confirmed: why it did not answer
	Outcome Outcome       // Tried
}

// Verdict is how a node should be. It is derived again from the Monitor's state
// each time it is asked for, so a shell that failed to write it may simply
// look again: it never carries out an old decision.
type Verdict struct {
	Known bool
	UID   string
	// Unknown says that its conditions are to be Unknown.
	Unknown bool
	// NoExecute is the key of the one NoExecute taint of ours it should have,
	// "" for none.
	NoExecute string
	// PodsNotReady says that no pod on it may count as ready.
	PodsNotReady bool
	Ready        Status
	// Turned is the resourceVersion in which the Ready condition became what it is,
	// 0 if that is not known: what a pod's older version says is no later word.
	Turned uint64
}

// The two real signs of life, and that of a node nothing is known of yet.
const (
	byLease   = "lease renewed"
	byStatus  = "status posted"
	firstSeen = "first seen"
)

// Monitor decides which nodes are dead and what follows. Its time is that of
// the shell's clock: what nodes write is only looked at for change. It is not
// safe for concurrent use.
type Monitor struct {
	s     Settings
	nodes map[string]*node
	zones map[string]*zone
	heap  timers
	// unreported are the nodes whose report is not upToDate.
	unreported []*node
	// confirmQueue holds the nodes that became overdue, in that order; those that
	// are not overdue any more were heard since. overdue counts the rest.
	confirmQueue []*node
	overdue      int
	lost         int    // nodes that are
	tickets      uint64 // the last that was given out
	// before holds what the leases said when this Monitor began, nil once it
	// was judged by.
	before map[*node]lastRenewal
	// orphanLeases are leases of nodes not known yet.
	orphanLeases map[string]Event
	synced       bool
	// rejudge: some zone's numbers changed.
	rejudge   bool
	suspended bool
	// sawReadyZone: some zone was not in FullDisruption since this controller
	// started. Until then a suspension is no change: the nodes of a cluster that
	// starts are not ready yet.
	sawReadyZone bool
	// suspendedAtStart: the suspension in force is such a one.
	suspendedAtStart bool
	confirmation
	notes []Decision // found while observing
}

// confirmation is how the Monitor finds out whether the silence of nodes is
// their own: it has the API asked.
type confirmation struct {
	// lastHeard is when any lease was seen renewed: a status comes by another
	// watch and says nothing of whether that of the leases lives. confirmed is
	// when the API last agreed that silence is silence.
	lastHeard, confirmed time.Time
	awake                time.Time // since when some node is not lost
	confirming, holding  bool
	// asked is when the API was asked last, held since when it has not answered.
	asked, held time.Time
	// alarm: the API did not answer someone. wasQuiet: it is asked because
	// no one was heard.
	alarm, wasQuiet bool
	// rescued counts nodes that were heard only because the API was asked.
	rescued  int
	askAt    time.Time
	failures int
}

// NewMonitor makes an empty one.
func NewMonitor(s Settings) *Monitor {
	s.QuietPeriod = min(s.QuietPeriod, s.Grace*2/5)
	return &Monitor{s: s, nodes: map[string]*node{}, zones: map[string]*zone{}, before: map[*node]lastRenewal{},
		orphanLeases: map[string]Event{}}
}

// Observe takes in one event. It says whether Advance has something to do now
// that it did not have before; a heartbeat of a healthy node has not.
func (m *Monitor) Observe(now time.Time, e Event) bool {
	if m.heap.base.IsZero() {
		m.heap.base = now
	}
	switch e.Kind {
	case NodeSeen:
		m.observeNode(now, e)
	case NodeRead:
		if n := m.nodes[e.Node]; n != nil && n.view.UID == e.View.UID {
			m.observeNode(now, e)
		}
	case NodeGone:
		m.forget(now, m.nodes[e.Node])
	case LeaseSeen:
		if n := m.nodes[e.Node]; n != nil {
			m.renew(now, n, e)
		} else {
			m.keepOrphanLease(e)
		}
	case Synced:
		m.beginGraces(now)
		m.judgeTraces(now)
		m.synced = true
		m.rejudge = true
		m.lastHeard = now
	case Confirmed:
		m.answer(now, e)
	case Unanswered:
		m.alarm = true
	case Tried:
		m.tried(now, e)
	}
	return m.synced && (len(m.unreported) > 0 || m.rejudge || len(m.notes) > 0 || e.Kind != LeaseSeen && e.Kind != NodeGone)
}

// observeNode takes in a Node object, new or changed. An object older than the known
// one is ignored; most often it shows this controller's own write late.
func (m *Monitor) observeNode(now time.Time, e Event) {
	n := m.nodes[e.Node]
	if n != nil && e.Version != 0 && e.Version < n.seen {
		return
	}
	if n != nil && n.view.UID != e.View.UID {
		m.forget(now, n) // deleted and made again between two looks
		n = nil
	}
	v := e.View
	if n == nil {
		n = &node{name: e.Node, view: v, seen: e.Version, met: e.Version, heard: now, by: firstSeen}
		n.timer = timer{index: -1, node: n}
		m.wakeUp(now)
		n.reported = Verdict{Known: true, UID: v.UID, NoExecute: v.taint()}
		if v.Ready == Missing && v.Created.Before(now) && !v.Created.IsZero() {
			n.heard, n.by = now.Add(v.Created.Sub(now)), "created" // with a monotonic reading, if now has one
		}
		m.nodes[e.Node] = n
		m.join(n, now)
		m.heap.set(&n.timer, m.deadline(n))
		m.touch(n)
		if lease, ok := m.orphanLeases[n.name]; ok {
			delete(m.orphanLeases, n.name)
			m.renew(now, n, lease)
		}
		return
	}
	old := n.view
	n.view, n.seen = v, e.Version
	if old.Ready != v.Ready {
		n.turned = e.Version
	}
	if old.Zone != v.Zone {
		m.leave(now, n)
		m.join(n, now)
	}
	// No one says of himself that nothing is known of him: a Ready condition
	// that appears as Unknown is this controller's own writing.
	appeared := (old.Ready == Missing) != (v.Ready == Missing) && v.Ready != Unknown
	if appeared || old.Ready != Missing && !old.Heartbeat.Equal(v.Heartbeat) {
		m.observeHeartbeat(now, n, byStatus)
		if v.Ready != Missing && old.Ready == Missing {
			// Its grace got shorter: the timer may be too late.
			m.heap.set(&n.timer, m.deadline(n))
		}
	}
	if old != v {
		m.touch(n)
	}
}

// keepOrphanLease remembers a lease that came before its node, so that it does not count
// as a heartbeat when it is seen again.
func (m *Monitor) keepOrphanLease(e Event) {
	if len(m.orphanLeases) > len(m.nodes)+1000 {
		clear(m.orphanLeases) // of nodes that never came
	}
	m.orphanLeases[e.Node] = e
}

// renew takes in a lease. A time later than the last is a sign of life; so is
// any other time in a later version, for the node's clock may have been set
// back. An older lease that comes late is not.
func (m *Monitor) renew(now time.Time, n *node, e Event) {
	if !e.Renewed.After(n.renewed) && (e.Version <= n.version || e.Renewed.Equal(n.renewed)) {
		return
	}
	first := n.renewed.IsZero()
	n.renewed, n.version, n.lasts = e.Renewed, e.Version, e.Lasts
	// The first lease after our start is not a sign of life by itself: it may
	// be as old as it likes. Later on that of a new node is, if it was written
	// after the node.
	switch {
	case !first || m.synced && e.Version > n.met:
		m.observeHeartbeat(now, n, byLease)
	case !m.synced:
		m.before[n] = lastRenewalOf(e)
	}
}

// observeHeartbeat records a heartbeat of the node.
func (m *Monitor) observeHeartbeat(now time.Time, n *node, by string) {
	m.wakeUp(now)
	n.heard, n.by, n.unheard, n.inRecoveryGrace = now, by, 0, false
	if by == byLease {
		m.lastHeard = now
	}
	delete(m.before, n)
	if m.confirming && (n.liveness == overdue || m.wasQuiet) {
		m.rescued++
	}
	if n.liveness != alive {
		m.becomeAlive(n)
		m.touch(n)
	}
}

// wakeUp begins to wait for leases when there was no one to hear of.
func (m *Monitor) wakeUp(now time.Time) {
	if m.lost == len(m.nodes) {
		m.awake = now
	}
}

func (m *Monitor) deadline(n *node) time.Time {
	if at := n.heard.Add(m.grace(n) + n.unheard); at.After(n.graceUntil) {
		return at
	}
	return n.graceUntil
}

func (m *Monitor) grace(n *node) time.Duration {
	if n.view.Ready == Missing {
		return m.s.StartupGrace
	}
	return m.s.Grace
}

// status is what the node counts as: what it said, unless it is lost.
func (n *node) status() Status {
	if n.liveness == lost {
		return Unknown
	}
	return n.view.Ready
}

// count moves the node between its zone's numbers.
func (m *Monitor) count(n *node) {
	as := False
	switch {
	case n.view.Excluded:
		as = Missing
	case n.status() == True:
		as = True
	}
	if as == n.counted {
		return
	}
	n.zone.add(n.counted, -1)
	n.zone.add(as, 1)
	n.counted = as
	n.zone.stale, m.rejudge = true, true
}

func (z *zone) add(as Status, by int) {
	switch as {
	case True:
		z.ready += by
	case False:
		z.notReady += by
	}
}

func (m *Monitor) join(n *node, now time.Time) {
	z := m.zones[n.view.Zone]
	if z == nil {
		// Its bucket starts empty: a controller that starts again and again
		// must not earn a token each time.
		z = &zone{name: n.view.Zone, bucket: bucket{rate: m.s.EvictionRate, since: now}}
		z.timer = timer{index: -1, zone: z}
		m.zones[z.name] = z
	}
	n.zone = z
	z.members++
	m.count(n)
}

func (m *Monitor) leave(now time.Time, n *node) {
	z := n.zone
	z.writeEnded(now, n)
	n.becomeTokenless()
	z.add(n.counted, -1)
	n.counted = Missing
	z.members--
	z.stale, m.rejudge = true, true
	if z.members == 0 {
		m.heap.remove(&z.timer)
		delete(m.zones, z.name)
	}
}

func (m *Monitor) forget(now time.Time, n *node) {
	if n == nil {
		return
	}
	m.leave(now, n)
	m.becomeForgotten(n)
	delete(m.before, n)
	delete(m.nodes, n.name)
	n.zone = nil
}

// Verdict says how the node should be now.
func (m *Monitor) Verdict(name string) Verdict {
	n := m.nodes[name]
	if n == nil || !m.synced {
		return Verdict{}
	}
	return m.verdict(n)
}

// Next is when Advance should be called though nothing was observed; zero for
// never.
func (m *Monitor) Next() time.Time {
	at, _ := m.heap.first()
	for _, ask := range []time.Time{m.askAt, m.quietAt()} {
		if !ask.IsZero() && (at.IsZero() || ask.Before(at)) {
			at = ask
		}
	}
	return at
}

// Zones are the numbers of every zone, for metrics.
func (m *Monitor) Zones(now time.Time) []ZoneView {
	out := make([]ZoneView, 0, len(m.zones))
	for _, z := range m.zones {
		out = append(out, z.view(now))
	}
	return out
}
