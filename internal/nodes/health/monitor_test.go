package health

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world plays API and nodes for a Monitor in virtual time: it carries verdicts
// out, answers Confirm, and checks what must always hold.
type world struct {
	t       testing.TB
	m       *Monitor
	now     time.Time
	nodes   []*fakeNode
	apiDown bool
	log     []Decision
	granted map[string][]time.Time // NoExecute tokens by zone
	added   map[string][]time.Time // NoExecute taints that were written, by zone
}

type fakeNode struct {
	name  string
	view  View
	alive bool
	renew time.Time
	skew  time.Duration // of its clock
	beat  time.Time     // last sign of life that could reach the Monitor
	// version is that of view. While the node is hidden, answers to its writes are
	// lost and what was written waits in past to be seen.
	version uint64
	hidden  bool
	past    []Event
}

// changed tells the Monitor of a write, at once or later.
func (w *world) changed(n *fakeNode) {
	n.version++
	e := Event{Kind: NodeSeen, Node: n.name, View: n.view, Version: n.version}
	if n.hidden {
		n.past = append(n.past, e)
		return
	}
	w.m.Observe(w.now, e)
}

// show lets the Monitor see what was hidden of a node, the oldest first.
func (w *world) show(n *fakeNode) {
	n.hidden = false
	for _, e := range n.past {
		w.m.Observe(w.now, e)
		w.settle()
	}
	n.past = nil
}

func (n *fakeNode) lease() Event {
	return Event{Kind: LeaseSeen, Node: n.name, Renewed: n.renew.Add(n.skew), Lasts: 40 * time.Second}
}

// unheard lets time pass in which no controller runs.
func (w *world) unheard(d time.Duration) {
	w.now = w.now.Add(d)
	for _, n := range w.nodes {
		for n.alive && !w.apiDown && !n.renew.Add(10*time.Second).After(w.now) {
			n.renew = n.renew.Add(10 * time.Second)
		}
	}
}

func newWorld(t testing.TB, s Settings, count, zones int) *world {
	w := &world{t: t, m: NewMonitor(s), now: t0, granted: map[string][]time.Time{}, added: map[string][]time.Time{}}
	for i := range count {
		n := &fakeNode{name: fmt.Sprintf("n%05d", i), alive: true, renew: t0, beat: t0}
		n.view = View{UID: n.name, Zone: fmt.Sprintf("r:\x00:z%d", i%zones), Created: t0.Add(-time.Hour), Ready: True}
		w.nodes = append(w.nodes, n)
		w.m.Observe(w.now, Event{Kind: NodeSeen, Node: n.name, View: n.view})
		w.m.Observe(w.now, Event{Kind: LeaseSeen, Node: n.name, Renewed: n.renew})
	}
	w.m.Observe(w.now, Event{Kind: Synced})
	w.settle()
	return w
}

// settle advances until nothing is left to decide, and writes every verdict.
func (w *world) settle() {
	for {
		ds := w.m.Advance(w.now)
		w.log = append(w.log, ds...)
		again := false
		for _, d := range ds {
			switch d.Kind {
			case Confirm:
				e := Event{Kind: Confirmed}
				if w.apiDown {
					e.Err = "connection refused"
				}
				w.m.Observe(w.now, e)
				again = true
			case Taint:
				if w.m.suspended {
					w.t.Fatalf("%s: tainted %s while all zones are disrupted", w.now.Sub(t0), d.Node)
				}
				w.granted[d.Cause.Zone.Name] = append(w.granted[d.Cause.Zone.Name], w.now)
			}
		}
		if w.apiDown {
			if !again {
				return
			}
			continue
		}
		for _, n := range w.nodes {
			v := w.m.Verdict(n.name)
			before := n.view
			if v.Unknown {
				n.view.Ready = Unknown
			}
			adds := v.NoExecute != "" && before.taint() == ""
			if adds && !w.m.ReserveTaint(w.now, n.name, "") {
				v.NoExecute, adds = "", false
			}
			n.view.NotReady, n.view.Unreachable = v.NoExecute == v1.TaintNodeNotReady, v.NoExecute == v1.TaintNodeUnreachable
			if n.view != before {
				w.changed(n)
				again = true
			}
			if adds {
				w.added[n.view.Zone] = append(w.added[n.view.Zone], w.now)
				end := Event{Kind: Tried, Node: n.name}
				if n.hidden {
					end.Outcome = Unsure
				}
				w.m.Observe(w.now, end)
			}
		}
		if !again {
			return
		}
	}
}

// run lets time pass; living nodes renew every ten seconds.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) {
		next := end
		if at := w.m.Next(); !at.IsZero() && at.Before(next) {
			next = at
		}
		for _, n := range w.nodes {
			if at := n.renew.Add(10 * time.Second); n.alive && at.Before(next) {
				next = at
			}
		}
		if next.After(w.now) {
			w.now = next
		}
		for _, n := range w.nodes {
			if n.alive && !w.now.Before(n.renew.Add(10*time.Second)) {
				n.renew = w.now
				if w.apiDown {
					continue
				}
				n.beat = w.now
				w.m.Observe(w.now, n.lease())
				if n.view.Ready == Unknown {
					n.view.Ready, n.view.Heartbeat = True, w.now
					w.changed(n)
				}
			}
		}
		w.settle()
		if w.now.Equal(end) {
			return
		}
	}
}

func (w *world) count(k Kind) (c int) {
	for _, d := range w.log {
		if d.Kind == k {
			c++
		}
	}
	return c
}

func TestOneSilentNodeIsMarkedAtItsDeadlineAndComesBack(t *testing.T) {
	w := newWorld(t, Defaults(), 10, 1)
	w.run(35 * time.Second)
	dead := w.nodes[3]
	dead.alive = false
	deadline := dead.beat.Add(50 * time.Second)
	w.run(deadline.Sub(w.now) - time.Millisecond)
	if dead.view.Ready != True {
		t.Fatal("marked before its deadline")
	}
	w.run(time.Millisecond)
	if dead.view.Ready != Unknown || !dead.view.Unreachable || !w.m.Verdict(dead.name).PodsNotReady {
		t.Fatalf("at its deadline: %+v", dead.view)
	}
	dead.alive = true
	w.run(20 * time.Second)
	if dead.view.Ready != True || dead.view.Unreachable || w.m.Verdict(dead.name).PodsNotReady {
		t.Fatalf("after its return: %+v", dead.view)
	}
}

// A watch that died or an API that does not answer looks like many dead nodes
// (kubernetes/kubernetes#85221).
func TestDeadAPIHoldsFire(t *testing.T) {
	w := newWorld(t, Defaults(), 100, 3)
	w.run(30 * time.Second)
	w.apiDown = true
	w.run(10 * time.Minute)
	w.apiDown = false
	w.run(5 * time.Minute)
	if n := w.count(MarkUnknown) + w.count(Taint); n != 0 || w.count(Hold) != 1 || w.count(Release) != 1 {
		t.Fatalf("%d nodes marked or tainted, %d holds, %d releases", n, w.count(Hold), w.count(Release))
	}
}

func TestAllZonesDisruptedSuspendsAndResumes(t *testing.T) {
	w := newWorld(t, Defaults(), 30, 3)
	for _, n := range w.nodes {
		n.alive = false
	}
	w.run(3 * time.Minute)
	for _, n := range w.nodes {
		if n.view.Ready != Unknown || n.view.Unreachable {
			t.Fatalf("%s: %+v", n.name, n.view)
		}
	}
	for _, n := range w.nodes[1:] {
		n.alive = true
	}
	w.run(3 * time.Minute)
	if w.count(Suspend) != 1 || w.count(Resume) != 1 || !w.nodes[0].view.Unreachable {
		t.Fatalf("%d suspensions, %d resumptions, the dead node %+v", w.count(Suspend), w.count(Resume), w.nodes[0].view)
	}
}

// A controller that starts again leaves the taints it finds and marks pods of
// dead nodes again (#135205).
func TestRestartNeitherStripsTaintsNorForgetsPods(t *testing.T) {
	m := NewMonitor(Defaults())
	m.Observe(t0, Event{Kind: NodeSeen, Node: "dead", View: View{UID: "1", Ready: Unknown, Unreachable: true}})
	if ds := m.Advance(t0); len(ds) != 0 {
		t.Fatalf("decided before the list was complete: %v", ds)
	}
	m.Observe(t0, Event{Kind: NodeSeen, Node: "good", View: View{UID: "2", Ready: True}})
	m.Observe(t0, Event{Kind: Synced})
	ds := m.Advance(t0)
	if v := m.Verdict("dead"); v.NoExecute != v1.TaintNodeUnreachable || !v.PodsNotReady {
		t.Fatalf("verdict %+v", v)
	}
	for _, d := range ds {
		if d.Kind == Taint || d.Kind == Untaint {
			t.Fatalf("touched the taint: %s", d.Text())
		}
	}
}

func TestZoneNumbers(t *testing.T) {
	for _, c := range []struct {
		ready, not int
		want       Disruption
	}{{0, 0, Normal}, {0, 1, Full}, {1, 2, Normal}, {2, 3, Partial}, {45, 55, Partial}, {46, 54, Normal}, {10, 0, Normal}} {
		if got := disruption(c.ready, c.not, 0.55); got != c.want {
			t.Errorf("%d ready, %d not: %s, want %s", c.ready, c.not, got, c.want)
		}
	}
}

// Whatever happens, no node just heard is Unknown, nothing is tainted while all
// zones are disrupted, and when faults stop everything converges.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, Defaults(), 3+r.IntN(12), 1+r.IntN(3))
		for range 25 {
			n := w.nodes[r.IntN(len(w.nodes))]
			switch r.IntN(4) {
			case 0, 1:
				n.alive = r.IntN(2) == 0
			case 2:
				w.apiDown = r.IntN(3) == 0
			case 3:
				if !w.apiDown && n.alive {
					n.view.Ready, n.view.Heartbeat, n.beat = []Status{True, False}[r.IntN(2)], w.now, w.now
					w.changed(n)
					w.settle()
				}
			}
			w.run(time.Duration(r.IntN(60_000)) * time.Millisecond)
			checkInvariants(t, w.m)
			for _, n := range w.nodes {
				if n.alive && !w.apiDown && n.view.Ready == Unknown && w.now.Sub(n.beat) < 10*time.Second &&
					n.view.Heartbeat.Equal(n.beat) {
					t.Fatalf("seed %d: %s is Unknown though just heard", seed, n.name)
				}
			}
		}
		w.apiDown = false
		w.run(20 * time.Minute)
		for _, n := range w.nodes {
			v := w.m.Verdict(n.name)
			switch {
			case n.alive && n.view.Ready == Unknown:
				t.Fatalf("seed %d: living %s stays Unknown", seed, n.name)
			case n.view.Ready == True && (v.NoExecute != "" || v.PodsNotReady):
				t.Fatalf("seed %d: ready %s has verdict %+v", seed, n.name, v)
			case !n.alive && (n.view.Ready != Unknown || !v.PodsNotReady):
				t.Fatalf("seed %d: dead %s is not marked", seed, n.name)
			}
		}
	}
}

// A zone's taints never come faster than its rate allows.
func TestTaintRate(t *testing.T) {
	w := newWorld(t, Defaults(), 40, 2)
	for i, n := range w.nodes {
		n.alive = i%2 == 1 || i >= 20
	}
	w.run(5 * time.Minute)
	for zone, at := range w.granted {
		if len(at) != 10 {
			t.Errorf("zone %s: %d taints, want 10", zone, len(at))
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < 10*time.Second || gap > 10*time.Second+time.Microsecond {
				t.Errorf("zone %s: %s between two taints, want 10s", zone, gap)
			}
		}
	}
}

func big(count int) *Monitor {
	m := NewMonitor(Defaults())
	for i := range count {
		m.Observe(t0, Event{Kind: NodeSeen, Node: fmt.Sprintf("n%06d", i), View: View{UID: "u", Zone: fmt.Sprintf("z%d", i%10),
			Ready: True}})
	}
	m.Observe(t0, Event{Kind: Synced})
	m.Advance(t0)
	return m
}

func BenchmarkHeartbeat100k(b *testing.B) {
	m := big(100_000)
	names := m.sorted()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now := t0.Add(time.Duration(i) * 100 * time.Microsecond)
		m.Observe(now, Event{Kind: LeaseSeen, Node: names[i%len(names)], Renewed: now.Add(time.Second)})
		if at := m.Next(); !at.After(now) {
			m.Advance(now)
		}
		i++
	}
}

func BenchmarkExpireAll100k(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		m := big(100_000)
		now := t0.Add(51 * time.Second)
		m.Advance(now)
		m.Observe(now, Event{Kind: Confirmed})
		b.StartTimer()
		if len(m.Advance(now)) < 100_000 {
			b.Fatal("not all were marked")
		}
	}
}

func TestMemoryPerNode(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m := big(20_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if per := (after.HeapAlloc - before.HeapAlloc) / 20_000; per > 1024 {
		t.Errorf("%d bytes a node, want at most 1024", per)
	}
	runtime.KeepAlive(m)
}
