package health

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/journal"
)

// Explain is what is known of a node at this moment and what will follow if
// nothing more is heard, for a reader; ok is false if the node is not known.
func (m *Monitor) Explain(name string, now time.Time) (r journal.Record, ok bool) {
	n := m.nodes[name]
	if n == nil {
		return journal.Record{}, false
	}
	r = journal.Record{Time: now, Part: "health", Object: journal.Ref{Kind: "Node", Name: name, UID: n.view.UID},
		Decision: m.describeState(n)}
	add := func(name, format string, args ...any) {
		r.Because = append(r.Because, journal.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	add("Ready condition", "%s", n.view.Ready)
	add("last heard", "%s ago (%s)", now.Sub(n.heard).Round(time.Millisecond), n.by)
	if n.unheard > 0 {
		add("not counted", "%s in which the API did not answer", n.unheard.Round(time.Millisecond))
	}
	if d := m.deadline(n); m.holding && n.liveness != lost {
		add("deadline", "stands still while the API does not answer, grace period %s", m.grace(n))
	} else if n.liveness != alive {
		add("deadline", "passed %s ago, grace period %s", now.Sub(d).Round(time.Millisecond), m.grace(n))
	} else {
		add("deadline", "in %s, grace period %s", d.Sub(now).Round(time.Millisecond), m.grace(n))
	}
	if key := m.verdict(n).NoExecute; key != "" {
		add("NoExecute taint", "%s", key)
	}
	z := n.zone.view(now)
	if n.token == holding {
		add("NoExecute token", "it has one, its taint is being written")
	}
	if n.token == waiting {
		add("NoExecute token", "%s", waitFor(n.zone.rank(n), z))
	}
	add("zone", "%q is in %s: %d ready, %d not", z.Name, z.State, z.Ready, z.NotReady)
	add("zone's rate", "%g nodes/s, %.2f tokens left, %d waiting", z.Rate, z.Tokens, z.Waiting)
	if m.suspended {
		add("suspended", "all zones are in FullDisruption: no NoExecute taints")
	}
	if m.holding {
		add("holding fire", "the API did not answer in time: no node is marked or tainted")
	}
	return r, true
}

// Heard is when a node was last heard; ok is false if it is not known, or was not
// heard since this controller started.
func (m *Monitor) Heard(name string) (at time.Time, ok bool) {
	n := m.nodes[name]
	if n == nil || n.by == beforeStart {
		return at, false
	}
	return n.heard, true
}

// describeState says in which state the node is, as a sentence without its subject.
func (m *Monitor) describeState(n *node) string {
	switch {
	case m.holding && n.liveness != lost:
		return "cannot be judged: the API does not answer"
	case n.liveness == overdue:
		return "is past its deadline, the API is being asked before it is marked"
	case n.liveness == lost:
		return "is silent and marked Unknown"
	case n.by == beforeStart:
		return "was silent when this controller started and has until its deadline to renew its lease"
	case n.inRecoveryGrace:
		return "was silent when the API came back and has until its deadline to renew its lease"
	case n.view.Ready == True:
		return "is heard and ready"
	case n.view.Ready == Missing:
		return "has not said yet whether it is ready"
	}
	return "is heard and says that it is not ready, or has yet to post a status after its silence"
}

// rank is the node's position among those that wait for its zone's tokens, from 1.
func (z *zone) rank(n *node) int {
	position := 0
	for _, t := range z.queue {
		if t.node.ticket == t.number {
			position++
		}
		if t.node == n && t.number == n.ticket {
			return position
		}
	}
	return 0
}

// waitFor says when the token of a position in the queue will be there.
func waitFor(position int, z ZoneView) string {
	if z.Rate <= 0 {
		return fmt.Sprintf("number %d of %d waiting; the zone gets none now", position, z.Waiting)
	}
	wait := time.Duration(max(0, float64(position)-z.Tokens) / z.Rate * float64(time.Second))
	return fmt.Sprintf("number %d of %d waiting, due in %s", position, z.Waiting, wait.Round(time.Millisecond))
}
