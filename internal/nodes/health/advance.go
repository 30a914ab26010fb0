package health

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Advance decides everything that is due at now and returns what changed since
// it was last asked, in a fixed order: what was noted while observing, silence,
// zones, tokens, nodes by name of their change.
func (m *Monitor) Advance(now time.Time) []Decision {
	if !m.synced {
		return nil
	}
	out := m.notes
	m.notes = nil
	out = m.expire(now, out)
	// A second round only if the first ended a suspension: that makes nodes
	// ready again, never fewer.
	for m.rejudge {
		out = m.judgeZones(now, out)
	}
	// By name: whoever starts waiting at one moment waits in a known order, and
	// decisions are told in one.
	byName := func(a, b *node) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(m.dirty, byName)
	for _, n := range m.dirty {
		if n.zone != nil {
			m.enqueue(n)
		}
	}
	m.grant(now)
	slices.SortFunc(m.dirty, byName)
	out = slices.Grow(out, 3*len(m.dirty))
	for _, n := range m.dirty {
		n.dirty = false
		if n.zone != nil {
			out = m.changes(now, n, out)
		}
	}
	clear(m.dirty)
	m.dirty = m.dirty[:0]
	for _, z := range m.zones {
		z.shot, z.granted = nil, 0
	}
	return out
}

// expire collects nodes past their deadline and marks them silent as soon as
// the silence is known to be theirs.
func (m *Monitor) expire(now time.Time, out []Decision) []Decision {
	for t := m.heap.due(now); t != nil; t = m.heap.due(now) {
		if t.node == nil {
			continue // a token: granting looks at every waiting zone
		}
		if d := m.deadline(t.node); d.After(now) {
			m.heap.set(t, d)
			continue
		}
		t.node.expired = true
		m.expired++
		m.late = append(m.late, t.node)
	}
	if m.confirming {
		return out
	}
	if m.holding || m.suspicious(now) {
		if now.Before(m.askAt) {
			return out
		}
		m.confirming, m.alarm, m.asked, m.askAt, m.rescued = true, false, now, time.Time{}, 0
		m.wasQuiet = !m.holding && now.Sub(m.lastHeard) >= m.s.Quiet
		return append(out, Decision{Kind: Confirm, Cause: m.doubt(now)})
	}
	for _, n := range m.late {
		if n.expired {
			m.notLate(n)
			m.setSilent(n, true)
			m.touch(n)
		}
	}
	m.late = nil
	return out
}

// suspicious says that the silence could be ours: a broken watch and a sick API
// server look like many dead nodes, or like a quiet cluster.
func (m *Monitor) suspicious(now time.Time) bool {
	if !m.confirmed.IsZero() && now.Sub(m.confirmed) < m.s.Trust {
		m.alarm = false
		return false
	}
	many := m.expired >= m.s.Many && 10*m.expired >= len(m.nodes)
	quiet := m.expired > 0 && now.Sub(m.lastHeard) >= m.s.Quiet
	if at := m.quietAt(); !at.IsZero() && !now.Before(at) {
		quiet = true
	}
	return many || quiet || m.alarm
}

// quietAt is when the API is asked if nobody is heard until then, though nobody
// is past a deadline; zero for never.
func (m *Monitor) quietAt() time.Time {
	if !m.synced || m.holding || m.confirming || m.silent == len(m.nodes) {
		return time.Time{}
	}
	at := m.lastHeard
	for _, later := range []time.Time{m.confirmed, m.awake} {
		if later.After(at) {
			at = later
		}
	}
	return at.Add(m.s.Quiet)
}

func (m *Monitor) doubt(now time.Time) Cause {
	return Cause{Zone: nowhere, Expired: m.expired, Quiet: now.Sub(m.lastHeard).Round(time.Second).String()}
}

// answer takes in what the API said.
func (m *Monitor) answer(now time.Time, e Event) {
	if !m.confirming {
		return
	}
	m.confirming = false
	if e.Err == "" && e.Took > m.s.Slow {
		e.Err = "the API took " + e.Took.Round(time.Millisecond).String() + " to list the leases, more than " + m.s.Slow.String()
	}
	if e.Err != "" {
		c := m.doubt(now)
		c.Error = e.Err
		if !m.holding {
			m.held = m.asked
			m.notes = append(m.notes, Decision{Kind: Hold, Cause: c})
		}
		m.holding = true
		m.failures = min(m.failures+1, 4)
		m.askAt = now.Add(time.Second << (m.failures - 1))
		return
	}
	m.failures, m.confirmed = 0, now
	if m.rescued > 0 {
		c := m.doubt(now)
		c.Expired = m.rescued
		m.notes = append(m.notes, Decision{Kind: StaleWatch, Cause: c})
	}
	if !m.holding {
		return
	}
	m.holding = false
	m.rejudge = true
	c := m.doubt(now)
	c.Unheard = now.Sub(m.held)
	m.notes = append(m.notes, Decision{Kind: Release, Cause: c})
	m.resumeSilence(now)
}

// resumeSilence lets the graces go on that stood still while the API did not
// answer: nobody could be heard. Agents need a while to come back, so who was not
// heard since has half of what its lease lasts, two intervals, whatever was left
// of its grace. It has that once in a silence: an API that comes and goes does not
// keep dead nodes from being marked.
func (m *Monitor) resumeSilence(now time.Time) {
	m.late, m.expired = nil, 0
	for _, n := range m.nodes {
		n.expired = false
		if n.silent {
			continue
		}
		since := m.held
		if n.heard.After(since) {
			since = n.heard
		}
		n.unheard += now.Sub(since)
		if !n.proving {
			n.proving, n.spared = true, now.Add(m.proof(n.lasts))
		}
		if n.timer.index < 0 {
			m.heap.set(&n.timer, m.deadline(n))
		}
	}
}

// proof is how long a living node may take to say so, once it can.
func (m *Monitor) proof(lasts time.Duration) time.Duration {
	if lasts <= 0 {
		lasts = upstreamLease
	}
	return min(lasts/2, m.s.Grace)
}

// freshGrace lets every node that is not Unknown already start over.
func (m *Monitor) freshGrace(now time.Time, by string) {
	m.late, m.expired = nil, 0
	for _, name := range m.sorted() {
		n := m.nodes[name]
		changed := n.silent
		n.heard, n.by, n.expired, n.unheard, n.proving = now, by, false, 0, false
		m.setSilent(n, false)
		if n.timer.index < 0 {
			m.heap.set(&n.timer, m.deadline(n))
		}
		if changed {
			m.touch(n)
		}
	}
}

// judgeZones recomputes the state of zones whose numbers changed, and the
// rates of all when the whole is suspended or resumed.
func (m *Monitor) judgeZones(now time.Time, out []Decision) []Decision {
	m.rejudge = false
	names := make([]string, 0, len(m.zones))
	full, counted := 0, 0
	for name, z := range m.zones {
		names = append(names, name)
		was := z.state
		z.state = disruption(z.ready, z.notReady, m.s.UnhealthyThreshold)
		z.stale = z.state != was
		if z.counted() {
			counted++
			if z.state == Full {
				full++
			}
		}
	}
	slices.Sort(names)
	was := m.suspended
	m.suspended = counted > 0 && full == counted
	for _, name := range names {
		z := m.zones[name]
		z.bucket.setRate(now, z.rate(m.s, m.suspended))
		if z.stale {
			z.stale = false
			v := z.view(now)
			out = append(out, Decision{Kind: ZoneChanged, Cause: Cause{Zone: &v}})
		}
	}
	switch {
	case m.suspended && !was:
		out = append(out, Decision{Kind: Suspend, Cause: Cause{Zone: nowhere}})
	case was && !m.suspended:
		out = append(out, Decision{Kind: Resume, Cause: Cause{Zone: nowhere}})
		m.freshGrace(now, "disruption of all zones ended")
	default:
		return out
	}
	for _, name := range m.sorted() {
		n := m.nodes[name]
		if m.suspended {
			n.dropPermit()
			m.dequeue(n)
		}
		m.touch(n)
	}
	return out
}

func (m *Monitor) sorted() []string {
	names := make([]string, 0, len(m.nodes))
	for name := range m.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// wanted is the NoExecute key that the node's status asks for.
func wanted(s Status) string {
	switch s {
	case False:
		return v1.TaintNodeNotReady
	case Unknown:
		return v1.TaintNodeUnreachable
	}
	return ""
}

// enqueue keeps the node's place in its zone's queue right.
func (m *Monitor) enqueue(n *node) {
	need := wanted(n.status()) != "" && n.view.taint() == "" && !m.suspended
	if !need && n.zone.flying != n {
		n.dropPermit()
	}
	if !need || n.permit {
		m.dequeue(n)
		return
	}
	if n.ticket == 0 {
		m.tickets++
		n.ticket = m.tickets
		n.zone.queue = append(n.zone.queue, ticket{n, n.ticket})
		n.zone.waiting++
		n.place = n.zone.waiting
	}
}

func (m *Monitor) verdict(n *node) Verdict {
	s := n.status()
	v := Verdict{Known: true, UID: n.view.UID, Unknown: n.silent, Ready: s, Turned: n.turned, PodsNotReady: s == False || s == Unknown}
	switch {
	case m.suspended:
	case s == Missing:
		v.NoExecute = n.view.taint() // it has not spoken: leave it
	case n.permit || n.view.taint() != "":
		v.NoExecute = wanted(s)
	}
	return v
}

// changes compares the node's verdict with the last one that was told.
func (m *Monitor) changes(now time.Time, n *node, out []Decision) []Decision {
	v, last := m.verdict(n), n.last
	n.last = v
	again, failed := n.retell && v.NoExecute != "", n.failed
	n.retell, n.failed = false, false
	if v == last && (n.ticket != 0) == n.toldWait && !again {
		return out
	}
	c := Cause{Ready: v.Ready, Heard: n.heard, By: n.by, Silent: now.Sub(n.heard), Grace: m.grace(n), Unheard: n.unheard, Zone: n.zone.snapshot(now)}
	add := func(k Kind, key, why string) {
		c := c
		c.Why = why
		out = append(out, Decision{Kind: k, Node: n.name, UID: v.UID, Key: key, Cause: c})
	}
	switch {
	case v.Unknown && !last.Unknown && n.view.Ready != Unknown:
		add(MarkUnknown, "", "nothing was heard for longer than the grace period")
	case !v.Unknown && last.Unknown && (n.by == byLease || n.by == byStatus):
		add(HeardAgain, "", "")
	}
	if v.PodsNotReady && !last.PodsNotReady {
		add(MarkPods, "", "")
	}
	if n.ticket != 0 && !n.toldWait {
		c.Position = n.place - n.zone.granted
		why := "its zone's token bucket is empty or closed"
		if failed {
			why = "the taint could not be written with the token it had"
		}
		add(Wait, "", why)
	}
	n.toldWait = n.ticket != 0
	switch {
	case v.NoExecute == last.NoExecute && !again:
	case v.NoExecute != "" && last.NoExecute == "" && !again: // it was found there
	case v.NoExecute != "":
		add(Taint, v.NoExecute, "")
	case m.suspended:
		add(Untaint, "", "all zones are disrupted: the fault may be on this side")
	case failed: // it never had it
	case v.Ready != True:
		add(Untaint, "", "it is not there any more")
	default:
		add(Untaint, "", "the node is ready")
	}
	return out
}
