package health

import (
	"testing"
	"time"
	"unsafe"
)

// setWall is t with the same monotonic reading and a wall clock ahead by the
// given seconds: what a process sees when someone sets the host's clock.
func setWall(t *testing.T, at time.Time, seconds int64) time.Time {
	set := at
	word := (*uint64)(unsafe.Pointer(&set)) //nolint:gosec // nothing else can forge it
	*word = uint64(int64(*word) + seconds<<30)
	if set.Sub(at) != 0 || set.Unix()-at.Unix() != seconds {
		t.Fatalf("time.Time has another shape: %s, %s", at, set)
	}
	return set
}

// The clock of the controller's own machine is set: no deadline moves, and
// nothing waits for a time that never comes.
func TestOwnClockIsSet(t *testing.T) {
	for _, seconds := range []int64{3600, -3600} {
		start := time.Now()
		m := NewMonitor(Defaults())
		m.Observe(start, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: True}})
		m.Observe(start, Event{Kind: NodeSeen, Node: "new", View: View{UID: "2", Created: start.Round(0).Add(-time.Second)}})
		m.Observe(start, Event{Kind: NodeSeen, Node: "other", View: View{UID: "3", Ready: True}})
		m.Observe(start, Event{Kind: Synced})
		m.Advance(start)
		at := func(d time.Duration) time.Time { return setWall(t, start.Add(d), seconds) }
		for d := 10 * time.Second; d < time.Minute; d += 10 * time.Second {
			m.Observe(at(d), Event{Kind: LeaseSeen, Node: "other", Renewed: start.Add(d), Version: uint64(d)})
		}
		if got := m.Next().Sub(start); got != 50*time.Second {
			t.Fatalf("clock set by %d s: next look after %s", seconds, got)
		}
		for _, c := range []struct {
			after  time.Duration
			node   string
			marked bool
		}{{49 * time.Second, "n", false}, {50 * time.Second, "n", true}, {58 * time.Second, "new", false},
			{59 * time.Second, "new", true}} {
			m.Advance(at(c.after))
			if got := m.Verdict(c.node).Unknown; got != c.marked {
				t.Errorf("clock set by %d s: after %s %s is Unknown: %v", seconds, c.after, c.node, got)
			}
		}
	}
}

// A clock that was set back is no death.
func TestClockSetBack(t *testing.T) {
	m := NewMonitor(Defaults())
	m.Observe(t0, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: True}})
	m.Observe(t0, Event{Kind: LeaseSeen, Node: "n", Renewed: t0, Version: 5})
	m.Observe(t0, Event{Kind: Synced})
	for i := range 30 {
		now := t0.Add(time.Duration(i+1) * 10 * time.Second)
		// An hour behind, and an old lease that comes late now and then.
		m.Observe(now, Event{Kind: LeaseSeen, Node: "n", Renewed: now.Add(-time.Hour), Version: uint64(10 + i)})
		for _, d := range m.Advance(now) {
			t.Fatalf("at %s: %s", now.Sub(t0), d.Text())
		}
	}
	last := t0.Add(300 * time.Second)
	m.Observe(last.Add(20*time.Second), Event{Kind: LeaseSeen, Node: "n", Renewed: last.Add(-time.Hour - 10*time.Second), Version: 20})
	if ds := m.Advance(last.Add(Defaults().Grace)); len(ds) == 0 {
		t.Error("an old lease counted as life")
	}
}
