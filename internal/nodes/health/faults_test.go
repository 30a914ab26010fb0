package health

import (
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the fault-injection tests found, each alone.

// Someone takes the taint off a dead node when its zone has a token: the node
// earns the taint again in the same moment, and it must be written.
func TestTaintTakenOffComesBackAtOnce(t *testing.T) {
	m := NewMonitor(Defaults())
	dead := View{UID: "1", Ready: Unknown, Unreachable: true}
	m.Observe(t0, Event{Kind: NodeSeen, Node: "dead", View: dead})
	m.Observe(t0, Event{Kind: NodeSeen, Node: "good", View: View{UID: "2", Ready: True}})
	m.Observe(t0, Event{Kind: Synced})
	m.Advance(t0)
	later := t0.Add(30 * time.Second) // the bucket is full
	m.Advance(later)
	dead.Unreachable = false
	m.Observe(later, Event{Kind: NodeSeen, Node: "dead", View: dead})
	for _, d := range m.Advance(later) {
		if d.Kind == Taint && d.Node == "dead" && d.Key == v1.TaintNodeUnreachable {
			if more := m.Advance(later); len(more) > 0 {
				t.Errorf("decided again: %v", more)
			}
			return
		}
	}
	t.Errorf("nobody is told to write the taint anew; verdict %+v", m.Verdict("dead"))
}

// Nodes that are listed long before their leases are not silent for that.
func TestLateLeaseListIsNoSilence(t *testing.T) {
	m := NewMonitor(Defaults())
	for i := range 5 {
		m.Observe(t0, Event{Kind: NodeSeen, Node: strconv.Itoa(i), View: View{UID: "u", Ready: True}})
	}
	now := t0.Add(time.Minute)
	for i := range 5 {
		m.Observe(now, Event{Kind: LeaseSeen, Node: strconv.Itoa(i), Renewed: now.Add(-time.Second), Version: uint64(i + 1)})
	}
	m.Observe(now, Event{Kind: Synced})
	for _, d := range m.Advance(now) {
		if d.Kind != ZoneChanged {
			t.Errorf("at the start: %s %s", d.Node, d.Text())
		}
	}
	for i := range 5 {
		if v := m.Verdict(strconv.Itoa(i)); v.Unknown || v.Ready != True {
			t.Errorf("node %d: %+v", i, v)
		}
	}
}

// A status comes by the watch of nodes: it does not make the silence of the
// leases believable.
func TestStatusDoesNotVouchForLeases(t *testing.T) {
	m := NewMonitor(Defaults())
	other := View{UID: "2", Ready: True}
	m.Observe(t0, Event{Kind: NodeSeen, Node: "quiet", View: View{UID: "1", Ready: True}})
	m.Observe(t0, Event{Kind: NodeSeen, Node: "other", View: other})
	m.Observe(t0, Event{Kind: Synced})
	m.Advance(t0)
	almost := t0.Add(49 * time.Second)
	other.Heartbeat = almost
	m.Observe(almost, Event{Kind: NodeSeen, Node: "other", View: other})
	ds := m.Advance(t0.Add(50 * time.Second))
	if len(ds) != 1 || ds[0].Kind != Confirm {
		t.Errorf("with no lease renewed for 50s: %v, want the API to be asked", ds)
	}
}

// What the API answered counts until the cache shows it, and no longer.
func TestFresh(t *testing.T) {
	var f fresh
	node := func(version, by string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: version, Labels: map[string]string{"by": by}}}
	}
	said := func(n *v1.Node) string { return n.Labels["by"] }
	f.put(node("9", "old answer"))
	f.put(node("10", "answer"))
	f.put(node("9", "late answer"))
	for _, c := range []struct{ version, want string }{{"8", "answer"}, {"10", "cache"}, {"11", "cache"}} {
		if got := said(f.newest(node(c.version, "cache"))); got != c.want {
			t.Errorf("over version %s: %s, want %s", c.version, got, c.want)
		}
	}
	f.shown(node("9", "cache"))
	if got := said(f.newest(node("8", "cache"))); got != "answer" {
		t.Errorf("a cache that is behind made it forget: %s", got)
	}
	f.shown(node("10", "cache"))
	if len(f.nodes) != 0 {
		t.Errorf("kept though the cache shows it: %v", f.nodes)
	}
	f.put(node("not a number", "strange"))
	if got := said(f.newest(node("1", "cache"))); got != "cache" {
		t.Errorf("an answer without a version counts: %s", got)
	}
	f.shown(node("1", "cache"))
	f.put(node("20", "answer"))
	recreated := node("15", "cache")
	recreated.UID = "another"
	f.gone(recreated)
	if got := said(f.newest(node("15", "cache"))); got != "answer" {
		t.Error("another node's end made it forget")
	}
	f.gone(node("21", "cache"))
	if len(f.nodes) != 0 {
		t.Errorf("kept after the node's end: %v", f.nodes)
	}
}

// A node that is made while the controller runs is heard by its first lease, too,
// if that is younger than the node: the one before may have come too early to count.
func TestFirstLeaseOfANewNodeIsLife(t *testing.T) {
	for _, c := range []struct {
		version uint64
		marked  bool
	}{{9, true}, {11, false}, {0, true}} {
		m := NewMonitor(Defaults())
		m.Observe(t0, Event{Kind: NodeSeen, Node: "old", View: View{UID: "1", Ready: True}})
		m.Observe(t0, Event{Kind: Synced})
		m.Observe(t0, Event{Kind: NodeSeen, Node: "new", View: View{UID: "2", Ready: True}, Version: 10})
		ten := t0.Add(10 * time.Second)
		m.Observe(ten, Event{Kind: LeaseSeen, Node: "new", Renewed: ten, Version: c.version})
		m.Observe(ten, Event{Kind: LeaseSeen, Node: "old", Renewed: ten, Version: 12})
		m.Observe(ten.Add(25*time.Second), Event{Kind: LeaseSeen, Node: "old", Renewed: ten.Add(25 * time.Second), Version: 13})
		m.Advance(t0.Add(50 * time.Second))
		if got := m.Verdict("new").Unknown; got != c.marked {
			t.Errorf("a lease of version %d of a node of version 10, 40 s ago: Unknown %v, want %v", c.version, got, c.marked)
		}
	}
}

// A lease that comes before its node and is seen again when the API is asked is no
// sign of life.
func TestLeaseBeforeItsNodeIsNoNewsLater(t *testing.T) {
	m := NewMonitor(Defaults())
	m.Observe(t0, Event{Kind: Synced})
	lease := Event{Kind: LeaseSeen, Node: "n", Renewed: t0, Version: 11}
	m.Observe(t0, lease)
	m.Observe(t0, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: True}, Version: 10})
	m.Advance(t0)
	m.Observe(t0.Add(25*time.Second), lease)
	m.Advance(t0.Add(50 * time.Second))
	m.Observe(t0.Add(50*time.Second), Event{Kind: Confirmed})
	m.Advance(t0.Add(50 * time.Second))
	if !m.Verdict("n").Unknown {
		t.Error("not marked at its deadline")
	}
}

// An API that was away for almost as long as the grace period is back just before
// a deadline: no one could be heard, and no one who lives is marked. Who died when it
// went is, within half a lease of what was left of its grace.
func TestOutageOfAlmostTheGraceIsNoSilence(t *testing.T) {
	for away := time.Second; away < 100*time.Second; away += 500 * time.Millisecond {
		w := newWorld(t, Defaults(), 6, 2)
		w.run(34 * time.Second)
		dead := w.nodes[0]
		dead.alive = false
		heard := w.now
		w.apiDown = true
		w.run(away)
		w.apiDown = false
		w.run(20 * time.Second)
		if n := w.count(MarkUnknown); n > 0 && (n > 1 || dead.view.Ready != Unknown) {
			t.Fatalf("away for %s: %d marked", away, n)
		}
		late := heard.Add(away + 50*time.Second + 8*time.Second) // the API is asked each 8 s whether it is back
		w.run(late.Sub(w.now))
		if n := w.count(MarkUnknown); n != 1 || dead.view.Ready != Unknown {
			t.Errorf("away for %s: %d marked after %s, want the dead one", away, n, w.now.Sub(heard))
		}
	}
}

// An API that comes and goes does not keep a dead node from being marked: each
// node is given time once in a silence, and only the outages do not count.
func TestFlappingAPIDelaysDetectionByItsOutagesOnly(t *testing.T) {
	m := NewMonitor(Defaults())
	m.Observe(t0, Event{Kind: NodeSeen, Node: "dead", View: View{UID: "1", Ready: True}})
	m.Observe(t0, Event{Kind: NodeSeen, Node: "good", View: View{UID: "2", Ready: True}})
	m.Observe(t0, Event{Kind: Synced})
	down := false
	for s := 0; s < 200; s++ {
		now := t0.Add(time.Duration(s) * time.Second)
		was := down
		down = s%15 >= 10 // five of each 15 s
		if down && !was {
			m.Observe(now, Event{Kind: Unanswered})
		}
		if !down && s%5 == 0 {
			m.Observe(now, Event{Kind: LeaseSeen, Node: "good", Renewed: now, Version: uint64(s + 1)})
		}
		for range 2 {
			for _, d := range m.Advance(now) {
				switch {
				case d.Kind == Confirm && down:
					m.Observe(now, Event{Kind: Confirmed, Err: "connection refused"})
				case d.Kind == Confirm:
					m.Observe(now, Event{Kind: Confirmed})
				case d.Kind == MarkUnknown && d.Node == "dead":
					if s < 60 || s > 120 {
						t.Errorf("marked after %d s, want 50 s and the outages", s)
					}
					return
				}
			}
		}
	}
	t.Error("never marked")
}

// A token serves one write: if its end is not known it may be tried again for the
// same version of the node only, and no one else gets one before it is told.
func TestTokenServesOneWrite(t *testing.T) {
	m := NewMonitor(Defaults())
	for _, name := range []string{"a", "b"} {
		m.Observe(t0, Event{Kind: NodeSeen, Node: name, View: View{UID: name, Ready: False}, Version: 5})
	}
	m.Observe(t0, Event{Kind: NodeSeen, Node: "good", View: View{UID: "good", Ready: True}})
	m.Observe(t0, Event{Kind: Synced})
	m.Advance(t0)
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	allowed := func(s float64, name, version string, want bool) {
		t.Helper()
		m.Advance(at(s))
		if got := m.ReserveTaint(at(s), name, version); got != want {
			t.Errorf("after %g s %s may write version %s: %v, want %v", s, name, version, got, want)
		}
		m.Advance(at(s))
	}
	end := func(s float64, name string, how Outcome) {
		m.Observe(at(s), Event{Kind: Tried, Node: name, Outcome: how})
		m.Advance(at(s))
	}
	allowed(9, "a", "5", false) // no token yet
	allowed(10, "a", "5", true)
	allowed(10, "a", "5", false) // it is being written: a second try costs the token
	end(11, "a", Unsure)
	allowed(20, "a", "5", false) // it waits behind b now
	allowed(20.9, "b", "5", false)
	allowed(21, "b", "5", true) // ten seconds after the end of that write
	end(21, "b", NotDone)
	allowed(21, "b", "6", true) // nothing was written
	end(21, "b", Unsure)
	allowed(22, "b", "7", false) // it may have been
	m.Observe(at(23), Event{Kind: NodeSeen, Node: "b", View: View{UID: "b", Ready: False, NotReady: true}, Version: 7})
	allowed(31, "a", "5", true)
	end(32, "a", Done)
	allowed(60, "b", "7", false) // it has its taint
}

// A node that was nearly silent for its grace when the API went away has half of its
// lease's duration after it is back: its agent may have been waiting to try again.
func TestNodesHaveTimeToComeBackAfterAnOutage(t *testing.T) {
	m := NewMonitor(Defaults())
	for _, name := range []string{"n", "other"} {
		m.Observe(t0, Event{Kind: NodeSeen, Node: name, View: View{UID: name, Ready: True}})
		m.Observe(t0, Event{Kind: LeaseSeen, Node: name, Renewed: t0, Version: 1, Lasts: 40 * time.Second})
	}
	m.Observe(t0, Event{Kind: Synced})
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	hear := func(s int) {
		m.Observe(at(s), Event{Kind: LeaseSeen, Node: "other", Renewed: at(s), Version: uint64(s), Lasts: 40 * time.Second})
		m.Advance(at(s))
	}
	hear(15)
	hear(30)
	hear(44)
	m.Observe(at(45), Event{Kind: Unanswered})
	m.Advance(at(45))
	m.Observe(at(45), Event{Kind: Confirmed, Err: "connection refused"})
	m.Advance(at(50))
	m.Observe(at(55), Event{Kind: Confirmed})
	hear(56)
	hear(70)
	for _, c := range []struct {
		after  int
		marked bool
	}{{74, false}, {75, true}} { // 5 s were left of its grace, of which it has 20
		m.Advance(at(c.after))
		if got := m.Verdict("n").Unknown; got != c.marked {
			t.Errorf("after %d s, the API being back since 55 s: Unknown %v, want %v", c.after, got, c.marked)
		}
	}
}

// An older version of a node that is seen after a newer one says nothing: neither
// of its taints nor that it lives.
func TestOlderNodeIsNoNews(t *testing.T) {
	m := NewMonitor(Defaults())
	m.Observe(t0, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: False, Heartbeat: t0}, Version: 10})
	m.Observe(t0, Event{Kind: NodeSeen, Node: "good", View: View{UID: "2", Ready: True}})
	m.Observe(t0, Event{Kind: Synced})
	m.Advance(t0)
	late := t0.Add(5 * time.Second)
	older := View{UID: "1", Ready: Unknown, Unreachable: true, Heartbeat: t0.Add(-time.Minute)}
	m.Observe(late, Event{Kind: NodeSeen, Node: "n", View: older, Version: 9})
	m.Advance(late)
	if v := m.Verdict("n"); v.NoExecute != "" || v.Ready != False || m.nodes["n"].heard != t0 {
		t.Errorf("verdict %+v, heard at %s, want nothing of the older version", v, m.nodes["n"].heard.Sub(t0))
	}
}

// A pod that became ready before its node said that it is not, and whose change is
// seen only afterwards, is marked: that is no later word of the agent's.
func TestPodSeenLateIsMarked(t *testing.T) {
	m := NewMonitor(Defaults())
	s := &shell{monitor: m, unready: newQueue("late"), wake: make(chan struct{}, 1)}
	m.Observe(t0, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: True}, Version: 5})
	m.Observe(t0, Event{Kind: Synced})
	m.Observe(t0, Event{Kind: NodeSeen, Node: "n", View: View{UID: "1", Ready: False, Heartbeat: t0}, Version: 10})
	m.Advance(t0)
	pod := func(version string, ready v1.ConditionStatus) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: version}, Spec: v1.PodSpec{NodeName: "n"},
			Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}}
	}
	s.onPodUpdate(pod("7", v1.ConditionFalse), pod("11", v1.ConditionTrue))
	if n := s.unready.Len(); n != 0 {
		t.Errorf("an agent's later word is written against: %d nodes queued", n)
	}
	s.onPodUpdate(pod("7", v1.ConditionFalse), pod("9", v1.ConditionTrue))
	if n := s.unready.Len(); n != 1 {
		t.Errorf("%d nodes queued, want the one whose pod was seen late", n)
	}
}
