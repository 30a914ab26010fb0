package announce

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a store and nodes under virtual time. Messages take their time, get
// lost before or after they had their effect, and clocks run at different
// speeds.
type world struct {
	t       testing.TB
	seed    uint64
	r       *rand.Rand
	now     time.Duration // of the world
	version uint64
	uids    int
	store   map[string]entry
	nodes   []*simNode
	events  []simEvent
	history []string
	quick   bool // no message is late
	late    int  // one message in so many is late
}

type simEvent struct {
	at time.Duration
	do func()
	n  int
}

type simNode struct {
	w     *world
	name  string
	core  *core
	dead  bool
	cut   bool // no message passes
	speed float64
	shift time.Duration
	life  int // processes so far
	wake  time.Duration
	// answers for them until a time on its own clock, as the speaker has it
	answers []netip.Addr
	until   time.Duration
}

func (n *simNode) clock() time.Duration {
	return n.shift + time.Duration(float64(n.w.now)*n.speed)
}

func newWorld(t testing.TB, seed uint64, nodes int) *world {
	w := &world{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 7)), store: map[string]entry{}}
	w.late = 2 + w.r.IntN(20)
	for i := range nodes {
		n := &simNode{w: w, name: fmt.Sprintf("n%d", i), speed: 1 + (w.r.Float64()-0.5)*0.06,
			shift: time.Duration(w.r.Int64N(int64(time.Hour)))}
		n.core = newCore(n.name, usual)
		w.nodes = append(w.nodes, n)
	}
	return w
}

func (w *world) say(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%8s  ", w.now.Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (w *world) after(d time.Duration, f func()) {
	w.events = append(w.events, simEvent{w.now + d, f, len(w.history)})
}

// delay is that of one message: mostly short, sometimes very long.
func (w *world) delay() time.Duration {
	if !w.quick && w.r.IntN(w.late) == 0 {
		return time.Duration(w.r.Int64N(int64(6 * time.Second)))
	}
	return time.Millisecond + time.Duration(w.r.Int64N(int64(20*time.Millisecond)))
}

// put is the API server: a write is taken if the version is right.
func (w *world) put(a action) (entry, bool) {
	was, there := w.store[a.entry.name]
	if !there && a.entry.version != 0 {
		w.version++
		return entry{name: a.entry.name, version: w.version, deleted: true}, false
	}
	if there != (a.entry.version != 0) || there && was.version != a.entry.version {
		return was, false
	}
	e := a.entry
	w.version++
	e.version = w.version
	if !there {
		w.uids++
		e.uid = fmt.Sprint("u", w.uids)
	}
	w.store[e.name] = e
	for _, n := range w.nodes {
		w.tell(n, e)
	}
	return e, true
}

// meddle deletes a session, as somebody with a kubectl might.
func (w *world) meddle(n *simNode) {
	e, there := w.store[sessionName(n.name)]
	if !there {
		return
	}
	w.say("somebody deletes %s", e.name)
	delete(w.store, e.name)
	w.version++
	e.version, e.deleted = w.version, true
	for _, n := range w.nodes {
		w.tell(n, e)
	}
}

// tell is the watch. A node that is cut off learns it when the cut ends.
func (w *world) tell(n *simNode, e entry) {
	life := n.life
	var deliver func()
	deliver = func() {
		switch {
		case n.dead || n.life != life:
		case n.cut:
			w.after(200*time.Millisecond, deliver)
		default:
			n.core.observe(n.clock(), e)
			n.run()
		}
	}
	w.after(w.delay(), deliver)
}

// run is the loop around the core.
func (n *simNode) run() {
	if n.dead {
		return
	}
	do, wake := n.core.step(n.clock())
	n.wake = wake
	n.answers, n.until = n.core.announced()
	for _, a := range do {
		n.send(a)
	}
}

func (n *simNode) send(a action) {
	w, life := n.w, n.life
	reply := func(is *entry, taken bool) {
		if !n.dead && n.life == life {
			n.core.done(n.clock(), a, is, taken)
			n.run()
		}
	}
	if n.cut {
		w.after(500*time.Millisecond, func() { reply(nil, false) })
		return
	}
	timeout := 600 * time.Millisecond
	answered := false
	w.after(timeout, func() {
		if !answered {
			answered = true
			reply(nil, false)
		}
	})
	w.after(w.delay(), func() {
		is, taken := w.put(a)
		w.say("%s: %s %s v%d: %v", n.name, a.kind, a.entry.name, a.entry.version, taken)
		w.after(w.delay(), func() {
			if !answered && !n.cut {
				answered = true
				reply(&is, taken)
			}
		})
	})
}

// answering are the nodes that answer for an address now.
func (w *world) answering(a netip.Addr) (out []string) {
	for _, n := range w.nodes {
		if !n.dead && slices.Contains(n.answers, a) && n.clock() < n.until {
			out = append(out, n.name)
		}
	}
	return out
}

// pass lets time go by to the next thing that happens.
func (w *world) pass(most time.Duration) {
	next := w.now + most
	for _, e := range w.events {
		next = min(next, e.at)
	}
	for _, n := range w.nodes {
		if at := time.Duration(float64(n.wake-n.shift)/n.speed) + 1; !n.dead && at > w.now {
			next = min(next, at)
		}
	}
	w.now = max(next, w.now)
	for {
		i := slices.IndexFunc(w.events, func(e simEvent) bool { return e.at <= w.now })
		if i < 0 {
			break
		}
		e := w.events[i]
		w.events = slices.Delete(w.events, i, i+1)
		e.do()
	}
	for _, n := range w.nodes {
		if !n.dead && n.clock() >= n.wake {
			n.run()
		}
	}
}

func (w *world) check(addrs []netip.Addr) {
	for _, a := range addrs {
		if who := w.answering(a); len(who) > 1 {
			w.t.Fatalf("seed %d: at %s %v all answer for %s:\n%s", w.seed, w.now, who, a,
				strings.Join(w.history[max(0, len(w.history)-60):], "\n"))
		}
	}
}

// wants is what all nodes want, as they see the cluster.
func (w *world) wants(addrs []netip.Addr, able ...string) {
	for _, n := range w.nodes {
		m := map[netip.Addr]want{}
		for _, a := range addrs {
			m[a] = want{order: sorted(a.String(), able), fit: slices.Contains(able, n.name)}
		}
		n.core.setWants(n.clock(), m)
		n.run()
	}
}

func (n *simNode) restart() {
	n.life++
	n.dead = false
	wants := n.core.wants
	n.core = newCore(n.name, usual)
	for _, name := range slices.Sorted(maps.Keys(n.w.store)) {
		n.core.observe(n.clock(), n.w.store[name])
	}
	n.core.setWants(n.clock(), wants)
	n.answers = nil
	n.run()
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// TestNeverTwoAnswer: whatever is lost, late, cut off, killed, excluded or
// wrong about the time, no two nodes answer for one address at any instant.
func TestNeverTwoAnswer(t *testing.T) {
	all := addrs("192.0.2.1", "192.0.2.2", "2001:db8::1")
	base := uint64(time.Now().UnixNano())
	answered := 0
	for i := range uint64(150) {
		w := newWorld(t, base+i, 3)
		names := []string{"n0", "n1", "n2"}
		w.wants(all, names...)
		for w.now < 90*time.Second {
			w.pass(50 * time.Millisecond)
			w.check(all)
			if len(w.answering(all[0])) == 1 {
				answered++
			}
			if w.r.IntN(60) != 0 {
				continue
			}
			n := w.nodes[w.r.IntN(3)]
			switch w.r.IntN(7) {
			case 0:
				w.say("%s dies", n.name)
				n.dead = true
			case 1:
				if n.dead || w.r.IntN(3) == 0 {
					w.say("%s starts", n.name)
					n.restart()
				}
			case 2:
				n.cut = !n.cut
				w.say("%s cut off: %v", n.name, n.cut)
			case 3:
				able := slices.DeleteFunc(slices.Clone(names), func(string) bool { return w.r.IntN(3) == 0 })
				w.say("fit: %v", able)
				w.wants(all, able...)
			case 4:
				if a, ok := n.core.stop(n.clock()); ok && !n.dead {
					w.say("%s stops", n.name)
					n.answers = nil
					n.send(a)
					n.dead = true
				}
			case 6:
				w.meddle(n)
			case 5:
				some := slices.DeleteFunc(slices.Clone(all), func(netip.Addr) bool { return w.r.IntN(4) == 0 })
				w.say("wanted: %v", some)
				w.wants(some, names...)
			}
		}
	}
	if answered == 0 {
		t.Error("nobody ever answered: the test tests nothing")
	}
}

// calm is a world in which messages are quick and nothing is lost.
func (w *world) until(what string, most time.Duration, ok func() bool) time.Duration {
	from := w.now
	for !ok() {
		if w.now > from+most {
			w.t.Fatalf("seed %d: %s took more than %s:\n%s", w.seed, what, most, strings.Join(w.history, "\n"))
		}
		w.pass(10 * time.Millisecond)
	}
	return w.now - from
}

func calm(t testing.TB, nodes int) *world {
	w := newWorld(t, 0, nodes)
	w.quick = true
	return w
}

// TestCalm: who answers when nothing is lost, and how fast that moves.
func TestCalm(t *testing.T) {
	a := addrs("192.0.2.1")[0]
	w := calm(t, 3)
	names := []string{"n0", "n1", "n2"}
	one := func(name string) func() bool {
		return func() bool { return slices.Equal(w.answering(a), []string{name}) }
	}
	order := sorted(a.String(), names)
	node := func(name string) *simNode {
		return w.nodes[slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.name == name })]
	}
	w.wants([]netip.Addr{a}, names...)
	if d := w.until("the first claim", time.Second, one(order[0])); d > 100*time.Millisecond {
		t.Errorf("the first claim took %s", d)
	}
	before := len(w.history)
	for range 1000 {
		w.pass(10 * time.Millisecond)
	}
	if writes := len(w.history) - before; writes > 22 || !one(order[0])() {
		t.Errorf("10 s of rest cost %d writes, and %v answer:\n%s", writes, w.answering(a), strings.Join(w.history, "\n"))
	}

	node(order[0]).dead = true
	if d := w.until("the move from a lost node", 3*time.Second, one(order[1])); d > 2*time.Second {
		t.Errorf("the move from a lost node took %s:\n%s", d, strings.Join(w.history, "\n"))
	}
	node(order[0]).restart()
	for range 500 {
		w.pass(10 * time.Millisecond)
		if !one(order[1])() {
			t.Fatalf("a node that came back took the address away:\n%s", strings.Join(w.history, "\n"))
		}
	}

	act, _ := node(order[1]).core.stop(node(order[1]).clock())
	node(order[1]).answers = nil
	node(order[1]).send(act)
	node(order[1]).dead = true
	if d := w.until("the move from a node that stops", time.Second, one(order[0])); d > 100*time.Millisecond {
		t.Errorf("the move from a node that stops took %s:\n%s", d, strings.Join(w.history, "\n"))
	}
	w.wants([]netip.Addr{a}, order[2])
	if d := w.until("the move from a node that is excluded", time.Second, one(order[2])); d > 100*time.Millisecond {
		t.Errorf("the move from a node that is excluded took %s:\n%s", d, strings.Join(w.history, "\n"))
	}
	w.wants([]netip.Addr{a}, order[0], order[2])
	node(order[2]).restart()
	if d := w.until("the return of a node that restarts", time.Second, one(order[2])); d > 100*time.Millisecond {
		t.Errorf("the return took %s:\n%s", d, strings.Join(w.history, "\n"))
	}
	w.wants(nil)
	w.until("the end", time.Second, func() bool { return len(w.answering(a)) == 0 })
	w.until("the end of the session", 4*time.Second, func() bool { return w.store[sessionName(order[2])].holder == "" })
	before = len(w.history)
	for range 1000 {
		w.pass(10 * time.Millisecond)
	}
	if len(w.history) != before {
		t.Errorf("no address, but writes:\n%s", strings.Join(w.history[before:], "\n"))
	}
}

// TestOneWhoIsCutOffFallsSilentFirst: a node whose messages do not pass stops
// before another begins, and answers again when its own claim was not taken.
func TestOneWhoIsCutOffFallsSilentFirst(t *testing.T) {
	a := addrs("192.0.2.1")[0]
	w := calm(t, 2)
	w.wants([]netip.Addr{a}, "n0", "n1")
	w.until("the first claim", time.Second, func() bool { return len(w.answering(a)) == 1 })
	first := w.answering(a)[0]
	other := map[string]string{"n0": "n1", "n1": "n0"}[first]
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.name == first })
	w.nodes[i].cut = true
	var said []string
	w.until("the move", 3*time.Second, func() bool {
		w.check([]netip.Addr{a})
		who := fmt.Sprint(w.answering(a))
		if len(said) == 0 || said[len(said)-1] != who {
			said = append(said, who)
		}
		return who == "["+other+"]"
	})
	if want := []string{"[" + first + "]", "[]", "[" + other + "]"}; !slices.Equal(said, want) {
		t.Errorf("answering in turn %v, want %v", said, want)
	}
	// All are cut off, so nobody can take it: the claim goes on afterwards.
	for _, n := range w.nodes {
		n.cut = true
	}
	w.until("the silence", 3*time.Second, func() bool { return len(w.answering(a)) == 0 })
	for _, n := range w.nodes {
		n.cut = false
	}
	w.until("the return", 4*time.Second, func() bool { return len(w.answering(a)) == 1 })
}

// TestMeddlingHeals: records and sessions that somebody deletes come back.
func TestMeddlingHeals(t *testing.T) {
	a := addrs("192.0.2.1")[0]
	w := calm(t, 2)
	w.wants([]netip.Addr{a}, "n0", "n1")
	w.until("the first claim", time.Second, func() bool { return len(w.answering(a)) == 1 })
	for range 5 {
		for _, n := range w.nodes {
			w.meddle(n)
		}
		w.until("the silence", 2*time.Second, func() bool { return len(w.answering(a)) == 0 })
		w.until("the return", 6*time.Second, func() bool { w.check([]netip.Addr{a}); return len(w.answering(a)) == 1 })
	}
}
