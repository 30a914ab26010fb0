package health

import (
	"slices"
	"testing"
	"time"
)

// checkInvariants reports what the fields of nodes promise and do not keep.
func checkInvariants(t testing.TB, m *Monitor) {
	t.Helper()
	counts := map[liveness]int{}
	tickets := map[*zone]int{}
	for name, n := range m.nodes {
		counts[n.liveness]++
		if n.liveness == alive != (n.timer.index >= 0) {
			t.Errorf("%s: liveness %d with timer index %d, want a timer exactly while alive", name, n.liveness, n.timer.index)
		}
		if n.liveness == overdue && !slices.Contains(m.confirmQueue, n) {
			t.Errorf("%s is overdue and not in the queue for confirmation", name)
		}
		if (n.token == waiting) != (n.ticket != 0) {
			t.Errorf("%s: token state %d with ticket %d", name, n.token, n.ticket)
		}
		if n.token == waiting {
			tickets[n.zone]++
			if !slices.Contains(n.zone.queue, ticket{n, n.ticket}) {
				t.Errorf("%s waits for a token and is not in its zone's queue", name)
			}
		}
		if (n.token == holding) != (n.zone.holder == n) {
			t.Errorf("%s: token state %d, but its zone's holder is %v", name, n.token, n.zone.holder)
		}
		if (n.report != upToDate) != slices.Contains(m.unreported, n) {
			t.Errorf("%s: report %d, in the list of nodes to report: %v", name, n.report, slices.Contains(m.unreported, n))
		}
	}
	if counts[overdue] != m.overdue || counts[lost] != m.lost {
		t.Errorf("%d overdue and %d lost, counted %d and %d", counts[overdue], counts[lost], m.overdue, m.lost)
	}
	for _, z := range m.zones {
		if z.waiting != tickets[z] {
			t.Errorf("zone %q: %d waiting, counted %d", z.name, tickets[z], z.waiting)
		}
	}
}

// A node goes from alive to overdue when its deadline passes, to lost when the API
// confirms, and back to alive at its next heartbeat; its token follows.
func TestLifecycleOfANode(t *testing.T) {
	m := NewMonitor(Defaults())
	for _, name := range []string{"n", "other"} {
		m.Observe(t0, Event{Kind: NodeSeen, Node: name, View: View{UID: name, Ready: True}})
		m.Observe(t0, Event{Kind: LeaseSeen, Node: name, Renewed: t0, Version: 1})
	}
	m.Observe(t0, Event{Kind: Synced})
	n, step := m.nodes["n"], 0
	want := func(s float64, l liveness, tok tokenState) {
		t.Helper()
		step++
		now := t0.Add(time.Duration(s * float64(time.Second)))
		m.Advance(now)
		if n.liveness != l || n.token != tok {
			t.Fatalf("step %d after %g s: liveness %d, token %d; want %d, %d", step, s, n.liveness, n.token, l, tok)
		}
		checkInvariants(t, m)
	}
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	hear := func(s float64, name string) {
		m.Observe(at(s), Event{Kind: LeaseSeen, Node: name, Renewed: at(s), Version: uint64(s)})
	}
	want(0, alive, tokenless)
	hear(49, "other")
	m.Observe(at(49), Event{Kind: Unanswered}) // the API is asked before anyone is marked
	want(50, overdue, tokenless)
	hear(50.5, "n")
	want(50.5, alive, tokenless)
	m.Observe(at(51), Event{Kind: Confirmed})
	hear(100, "other")
	want(100.4, alive, tokenless)
	want(101, lost, holding) // others are heard: no need to ask; the zone's bucket is full
	if !m.ReserveTaint(at(101), "n", "7") {
		t.Fatal("the holder may not write")
	}
	m.Observe(at(102), Event{Kind: Tried, Node: "n", Outcome: Unsure})
	want(102, lost, holding)
	want(111.5, lost, waiting) // its turn is over, and the bucket empty
	hear(113, "n")
	want(113, alive, tokenless)
}
