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
	// Before nodes are marked, the API is asked if Many or more (and at least
	// a tenth of all) are past their deadline. It is asked, too, whenever nobody
	// was heard for Quiet, at most two fifths of the grace: an API that is away
	// is found out long before living nodes are past their deadlines. An answer
	// later than Slow counts as none. It is good for Trust.
	Many               int
	Quiet, Slow, Trust time.Duration
}

// Defaults are upstream's, and ours for what upstream does not have.
func Defaults() Settings {
	return Settings{Grace: 50 * time.Second, StartupGrace: 60 * time.Second, EvictionRate: 0.1, SecondaryEvictionRate: 0.01,
		UnhealthyThreshold: 0.55, LargeZone: 50, Many: 3, Quiet: 20 * time.Second, Slow: 5 * time.Second, Trust: time.Second}
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
// how a write ended that Spend allowed; what the API answered comes before it.
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

// Verdict is how a node should be. It is derived anew from the Monitor's state
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

type node struct {
	name    string
	view    View
	seen    uint64 // version of the Node that view is of
	met     uint64 // that of the first that was seen
	turned  uint64 // that of the first in which Ready was seen to be what it is; 0 if it was from the start
	renewed time.Time
	version uint64        // of the lease that said renewed
	lasts   time.Duration // the lease's duration
	heard   time.Time
	by      string
	unheard time.Duration // since then, while the API did not answer: no silence of the node's
	spared  time.Time     // it is not past its deadline before this, whenever it was heard
	proving bool          // spared was set because the API came back after heard
	timer   timer
	zone    *zone
	// silent: past its deadline and confirmed. expired: past it, not confirmed.
	silent, expired bool
	counted         Status // as zone numbers count it: Missing = not at all, True, False
	ticket          uint64 // its number in the zone's queue, 0 if not waiting
	place           int    // how many waited with it when it joined the queue
	permit          bool   // it has its zone's token and no taint of ours yet
	unsure          string // version of the Node that a write with that token was computed from and whose end is not known
	retell          bool   // it got a token since its verdict was told
	failed          bool   // it lost its token since then, and has no taint
	last            Verdict
	toldWait        bool
	dirty           bool
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
	dirty []*node
	// late are nodes past their deadline that wait for confirmation, in the
	// order they got there; those whose expired is false were heard since.
	// expired counts the rest.
	late    []*node
	expired int
	silent  int // nodes that are
	tickets uint64
	// before holds what the leases said when this Monitor began, nil once it
	// was judged by.
	before map[*node]trace
	// strays are leases of nodes not known yet.
	strays map[string]Event
	synced bool
	// rejudge: some zone's numbers changed.
	rejudge   bool
	suspended bool
	// lastHeard is when any lease was seen renewed: a status comes by another
	// watch and says nothing of whether that of the leases lives. confirmed is
	// when the API last agreed that silence is silence.
	lastHeard, confirmed time.Time
	awake                time.Time // since when some node is not silent
	confirming, holding  bool
	// asked is when the API was asked last, held since when it has not answered.
	asked, held time.Time
	// alarm: the API did not answer somebody. wasQuiet: it is asked because
	// nobody was heard.
	alarm, wasQuiet bool
	// rescued counts nodes that were heard only because the API was asked.
	rescued  int
	askAt    time.Time
	failures int
	notes    []Decision // found while observing
}

// NewMonitor makes an empty one.
func NewMonitor(s Settings) *Monitor {
	s.Quiet = min(s.Quiet, s.Grace*2/5)
	return &Monitor{s: s, nodes: map[string]*node{}, zones: map[string]*zone{}, before: map[*node]trace{}, strays: map[string]Event{}}
}

// Observe takes in one event. It says whether Advance has something to do now
// that it did not have before; a heartbeat of a healthy node has not.
func (m *Monitor) Observe(now time.Time, e Event) bool {
	if m.heap.base.IsZero() {
		m.heap.base = now
	}
	switch e.Kind {
	case NodeSeen:
		m.see(now, e)
	case NodeRead:
		if n := m.nodes[e.Node]; n != nil && n.view.UID == e.View.UID {
			m.see(now, e)
		}
	case NodeGone:
		m.forget(now, m.nodes[e.Node])
	case LeaseSeen:
		if n := m.nodes[e.Node]; n != nil {
			m.renew(now, n, e)
		} else {
			m.keep(e)
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
	return m.synced && (len(m.dirty) > 0 || m.rejudge || len(m.notes) > 0 || e.Kind != LeaseSeen && e.Kind != NodeGone)
}

// see takes in a Node object, new or changed. One that is older than what is
// known is late word, most often of this controller's own writes.
func (m *Monitor) see(now time.Time, e Event) {
	n := m.nodes[e.Node]
	if n != nil && e.Version != 0 && e.Version < n.seen {
		return
	}
	if n != nil && n.view.UID != e.View.UID {
		m.forget(now, n) // deleted and made anew between two looks
		n = nil
	}
	v := e.View
	if n == nil {
		n = &node{name: e.Node, view: v, seen: e.Version, met: e.Version, heard: now, by: firstSeen}
		n.timer = timer{index: -1, node: n}
		m.wakeUp(now)
		n.last = Verdict{Known: true, UID: v.UID, NoExecute: v.taint()}
		if v.Ready == Missing && v.Created.Before(now) && !v.Created.IsZero() {
			n.heard, n.by = now.Add(v.Created.Sub(now)), "created" // with a monotonic reading, if now has one
		}
		m.nodes[e.Node] = n
		m.join(n, now)
		m.heap.set(&n.timer, m.deadline(n))
		m.touch(n)
		if lease, ok := m.strays[n.name]; ok {
			delete(m.strays, n.name)
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
	// Nobody says of himself that nothing is known of him: a Ready condition
	// that appears as Unknown is this controller's own writing.
	appeared := (old.Ready == Missing) != (v.Ready == Missing) && v.Ready != Unknown
	if appeared || old.Ready != Missing && !old.Heartbeat.Equal(v.Heartbeat) {
		m.hear(now, n, byStatus)
		if v.Ready != Missing && old.Ready == Missing {
			// Its grace got shorter: the timer may be too late.
			m.heap.set(&n.timer, m.deadline(n))
		}
	}
	if old != v {
		m.touch(n)
	}
}

// keep remembers a lease that came before its node, so that it does not pass for
// news when it is seen again.
func (m *Monitor) keep(e Event) {
	if len(m.strays) > len(m.nodes)+1000 {
		clear(m.strays) // of nodes that never came
	}
	m.strays[e.Node] = e
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
		m.hear(now, n, byLease)
	case !m.synced:
		m.before[n] = traceOf(e)
	}
}

// hear notes a sign of life.
func (m *Monitor) hear(now time.Time, n *node, by string) {
	m.wakeUp(now)
	n.heard, n.by, n.unheard, n.proving = now, by, 0, false
	if by == byLease {
		m.lastHeard = now
	}
	delete(m.before, n)
	if m.confirming && (n.expired || m.wasQuiet) {
		m.rescued++
	}
	if n.silent || n.expired {
		m.setSilent(n, false)
		m.notLate(n)
		m.touch(n)
	}
	if n.timer.index < 0 {
		m.heap.set(&n.timer, m.deadline(n))
	}
}

// wakeUp begins to wait for leases when there was nobody to hear of.
func (m *Monitor) wakeUp(now time.Time) {
	if m.silent == len(m.nodes) {
		m.awake = now
	}
}

// notLate takes a node out of those that wait for confirmation.
func (m *Monitor) notLate(n *node) {
	if n.expired {
		n.expired = false
		m.expired--
	}
}

func (m *Monitor) setSilent(n *node, silent bool) {
	switch {
	case silent && !n.silent:
		m.silent++
	case !silent && n.silent:
		m.silent--
	}
	n.silent = silent
}

func (m *Monitor) deadline(n *node) time.Time {
	if at := n.heard.Add(m.grace(n) + n.unheard); at.After(n.spared) {
		return at
	}
	return n.spared
}

func (m *Monitor) grace(n *node) time.Duration {
	if n.view.Ready == Missing {
		return m.s.StartupGrace
	}
	return m.s.Grace
}

// status is what the node counts as: what it said, unless it is silent.
func (n *node) status() Status {
	if n.silent {
		return Unknown
	}
	return n.view.Ready
}

func (m *Monitor) touch(n *node) {
	if !n.dirty {
		n.dirty = true
		m.dirty = append(m.dirty, n)
	}
	m.count(n)
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
	m.dequeue(n)
	z := n.zone
	z.landed(now, n)
	n.dropPermit()
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
	m.heap.remove(&n.timer)
	m.notLate(n)
	m.setSilent(n, false)
	delete(m.before, n)
	delete(m.nodes, n.name)
	n.zone = nil
}

func (m *Monitor) dequeue(n *node) {
	if n.ticket != 0 {
		n.ticket = 0
		n.zone.waiting--
	}
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
