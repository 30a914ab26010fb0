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
	// By name: nodes that start waiting at one moment wait in a known order, and
	// decisions are reported in one.
	byName := func(a, b *node) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(m.unreported, byName)
	for _, n := range m.unreported {
		if n.zone != nil {
			m.enqueue(n)
		}
	}
	m.grant(now)
	slices.SortFunc(m.unreported, byName)
	out = slices.Grow(out, 3*len(m.unreported))
	for _, n := range m.unreported {
		news := n.becomeReported()
		if n.zone != nil {
			out = m.changes(now, n, news, out)
		}
	}
	clear(m.unreported)
	m.unreported = m.unreported[:0]
	for _, z := range m.zones {
		z.shot, z.granted = nil, 0
	}
	return out
}

// expire collects nodes past their deadline and takes them for lost as soon as
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
		m.becomeOverdue(t.node)
	}
	if m.confirming {
		return out
	}
	if m.holding || m.suspicious(now) {
		if now.Before(m.askAt) {
			return out
		}
		m.confirming, m.alarm, m.asked, m.askAt, m.rescued = true, false, now, time.Time{}, 0
		m.wasQuiet = !m.holding && now.Sub(m.lastHeard) >= m.s.QuietPeriod
		return append(out, Decision{Kind: Confirm, Cause: m.confirmCause(now)})
	}
	for _, n := range m.confirmQueue {
		if n.liveness == overdue {
			m.becomeLost(n)
			m.touch(n)
		}
	}
	m.confirmQueue = nil
	return out
}

// suspicious says that the silence could be ours: a broken watch and a sick API
// server look like many dead nodes, or like a quiet cluster.
func (m *Monitor) suspicious(now time.Time) bool {
	if !m.confirmed.IsZero() && now.Sub(m.confirmed) < m.s.ConfirmTTL {
		m.alarm = false
		return false
	}
	many := m.overdue >= m.s.ConfirmThreshold && 10*m.overdue >= len(m.nodes)
	quiet := m.overdue > 0 && now.Sub(m.lastHeard) >= m.s.QuietPeriod
	if at := m.quietAt(); !at.IsZero() && !now.Before(at) {
		quiet = true
	}
	return many || quiet || m.alarm
}

// quietAt is when the API is asked if no one is heard until then, though no one
// is past a deadline; zero for never.
func (m *Monitor) quietAt() time.Time {
	if !m.synced || m.holding || m.confirming || m.lost == len(m.nodes) {
		return time.Time{}
	}
	at := m.lastHeard
	for _, later := range []time.Time{m.confirmed, m.awake} {
		if later.After(at) {
			at = later
		}
	}
	return at.Add(m.s.QuietPeriod)
}

// confirmCause is the cause of asking the API to confirm that nodes are silent.
func (m *Monitor) confirmCause(now time.Time) Cause {
	return Cause{Zone: nowhere, Expired: m.overdue, Quiet: now.Sub(m.lastHeard).Round(time.Second).String()}
}

// answer takes in what the API said.
func (m *Monitor) answer(now time.Time, e Event) {
	if !m.confirming {
		return
	}
	m.confirming = false
	if e.Err == "" && e.Took > m.s.ConfirmTimeout {
		e.Err = "the API took " + e.Took.Round(time.Millisecond).String() + " to list the leases, more than " + m.s.ConfirmTimeout.String()
	}
	if e.Err != "" {
		c := m.confirmCause(now)
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
		c := m.confirmCause(now)
		c.Expired = m.rescued
		m.notes = append(m.notes, Decision{Kind: StaleWatch, Cause: c})
	}
	if !m.holding {
		return
	}
	m.holding = false
	m.rejudge = true
	c := m.confirmCause(now)
	c.Unheard = now.Sub(m.held)
	m.notes = append(m.notes, Decision{Kind: Release, Cause: c})
	m.resumeSilence(now)
}

// resumeSilence lets the graces go on that stood still while the API did not
// answer: no node could be heard. Agents need a while to come back, so a node not
// heard since has half of what its lease lasts, two intervals, whatever was left
// of its grace. It has that once in a silence: an API that comes and goes does not
// keep dead nodes from being marked.
func (m *Monitor) resumeSilence(now time.Time) {
	for _, n := range m.nodes {
		if n.liveness == lost {
			continue
		}
		since := m.held
		if n.heard.After(since) {
			since = n.heard
		}
		n.unheard += now.Sub(since)
		if !n.inRecoveryGrace {
			n.inRecoveryGrace, n.graceUntil = true, now.Add(m.recoveryGrace(n.lasts))
		}
		m.becomeAlive(n)
	}
	m.confirmQueue = nil
}

// recoveryGrace is how long a living node may take to renew its lease, once it can.
func (m *Monitor) recoveryGrace(lasts time.Duration) time.Duration {
	if lasts <= 0 {
		lasts = upstreamLease
	}
	return min(lasts/2, m.s.Grace)
}

// freshGrace lets every node that is not Unknown already start over.
func (m *Monitor) freshGrace(now time.Time, by string) {
	for _, name := range m.sorted() {
		n := m.nodes[name]
		wasLost := n.liveness == lost
		n.heard, n.by, n.unheard, n.inRecoveryGrace = now, by, 0, false
		m.becomeAlive(n)
		if wasLost {
			m.touch(n)
		}
	}
	m.confirmQueue = nil
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
	if counted > full {
		m.sawReadyZone = true
	}
	switch {
	case m.suspended && !was:
		m.suspendedAtStart = !m.sawReadyZone
		out = append(out, Decision{Kind: Suspend, AtStart: m.suspendedAtStart, Cause: Cause{Zone: nowhere}})
	case was && !m.suspended:
		out = append(out, Decision{Kind: Resume, AtStart: m.suspendedAtStart, Cause: Cause{Zone: nowhere}})
		m.freshGrace(now, "disruption of all zones ended")
	default:
		return out
	}
	for _, name := range m.sorted() {
		n := m.nodes[name]
		if m.suspended {
			n.becomeTokenless()
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

// enqueue lets a node that needs a token wait for one, and frees one that needs
// none. A node whose taint is being written keeps its token until the end of that
// write is known.
func (m *Monitor) enqueue(n *node) {
	need := wanted(n.status()) != "" && n.view.taint() == "" && !m.suspended
	switch {
	case need && n.token == tokenless:
		m.becomeWaiting(n)
	case !need && (n.token == waiting || n.zone.writing != n):
		n.becomeTokenless()
	}
}

func (m *Monitor) verdict(n *node) Verdict {
	s := n.status()
	v := Verdict{Known: true, UID: n.view.UID, Unknown: n.liveness == lost, Ready: s, Turned: n.turned,
		PodsNotReady: s == False || s == Unknown}
	switch {
	case m.suspended:
	case s == Missing:
		v.NoExecute = n.view.taint() // it has not spoken: leave it
	case n.token == holding || n.view.taint() != "":
		v.NoExecute = wanted(s)
	}
	return v
}

// changes compares the node's verdict with the last one that was reported; news
// is what happened since then.
func (m *Monitor) changes(now time.Time, n *node, news report, out []Decision) []Decision {
	v, last := m.verdict(n), n.reported
	n.reported = v
	waits, waitReported := n.token == waiting, n.waitReported
	n.waitReported = waits
	again, failed := news == tokenGranted && v.NoExecute != "", news == tokenLost
	if v == last && waits == waitReported && !again {
		return out
	}
	c := Cause{Ready: v.Ready, Heard: n.heard, By: n.by, Silent: now.Sub(n.heard), Grace: m.grace(n), Unheard: n.unheard,
		Zone: n.zone.snapshot(now)}
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
	if waits && !waitReported {
		c.Position = n.position - n.zone.granted
		why := "its zone's token bucket is empty or closed"
		if failed {
			why = "the taint could not be written with the token it had"
		}
		add(Wait, "", why)
	}
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
