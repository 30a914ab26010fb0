package health

import (
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What internal/nodes/storm found, each alone.

// Somebody takes the taint off a dead node when its zone has a token: the node
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
		if got := said(f.over(node(c.version, "cache"))); got != c.want {
			t.Errorf("over version %s: %s, want %s", c.version, got, c.want)
		}
	}
	f.shown(node("9", "cache"))
	if got := said(f.over(node("8", "cache"))); got != "answer" {
		t.Errorf("a cache that is behind made it forget: %s", got)
	}
	f.shown(node("10", "cache"))
	if len(f.nodes) != 0 {
		t.Errorf("kept though the cache shows it: %v", f.nodes)
	}
	f.put(node("not a number", "strange"))
	if got := said(f.over(node("1", "cache"))); got != "cache" {
		t.Errorf("an answer without a version counts: %s", got)
	}
	f.shown(node("1", "cache"))
	f.put(node("20", "answer"))
	anew := node("15", "cache")
	anew.UID = "another"
	f.gone(anew)
	if got := said(f.over(node("15", "cache"))); got != "answer" {
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
