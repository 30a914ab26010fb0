// Package announce leads traffic for the pool addresses of Services to one node
// of its link: the node answers ARP requests and neighbour solicitations for
// them, as long as its claim on the address holds.
//
// Each address has a record that names the node, and each node that announces
// has a session, which it renews. A record holds while the session under which
// it was written goes on. A session is over when its node ends it, or when
// another node saw it unchanged for longer than a term and wrote its end on
// condition that it had not changed meanwhile (fenced it). A node answers for a
// term from the moment before it sent the last renewal that was taken, by a
// clock that goes on while the host sleeps. So there is no instant at which two
// nodes answer, however long messages take and whatever the clocks show, as
// long as no clock runs faster than another by more than timing.wait allows.
//
// core decides and is pure; run.go is the loop around it, lease.go what records
// and sessions look like in the API, packet.go and speaker.go the frames.
package announce

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timing is how long claims last. All are lengths on the node's own clock.
type timing struct {
	// term is how long a node answers after it sent a renewal.
	term time.Duration
	// wait is how long a session must have been seen unchanged before it may be
	// fenced: more than a term by as much as clocks may differ in speed.
	wait time.Duration
	// renew is the time from one renewal to the next: three fit into a term.
	renew time.Duration
	// stagger is how much longer each further candidate waits, so that the first
	// one takes an address and the others need not try.
	stagger time.Duration
	// retry is the rest after a failed write.
	retry time.Duration
	// linger is how long a session without an address goes on.
	linger time.Duration
}

// usual moves addresses of a lost node 1.6 s after its last renewal, for two
// writes a second by each node that announces.
var usual = timing{term: 1500 * time.Millisecond, wait: 1600 * time.Millisecond, renew: 500 * time.Millisecond,
	stagger: 300 * time.Millisecond, retry: 300 * time.Millisecond, linger: 2 * time.Second}

// mostWrites bounds the records that a node writes at the same time.
const mostWrites = 8

// entry is a record or a session, as the API has it.
type entry struct {
	name string
	// version grows with every change of any entry; 0 is an entry that is not
	// there yet.
	version uint64
	deleted bool
	uid     string
	// holder is a node's name, or empty for a record that is free and a session
	// that is over.
	holder string
	// turn counts the sessions of a node.
	turn int32
	// session is that under which a record was written.
	session string
}

// id names one session of all that a node ever has. A node's sessions of one
// UID have turns that grow, and a turn that is over never goes on.
func (e entry) id() string { return fmt.Sprintf("%s/%d", e.uid, e.turn) }

func splitID(id string) (uid string, turn int32) {
	uid, text, _ := strings.Cut(id, "/")
	n, _ := strconv.ParseInt(text, 10, 32)
	return uid, int32(n)
}

// sessionName and recordName are the names of entries.
func sessionName(node string) string { return "node." + node }

func recordName(a netip.Addr) string {
	return "address." + strings.ReplaceAll(a.StringExpanded(), ":", "-")
}

// want is who may announce an address.
type want struct {
	// order are the candidates, the one that should have it first.
	order []string
	// fit says whether this node may go on, candidate or not.
	fit bool
}

// seen is an entry and when this node first saw it in this version, and with
// this holder in this turn.
type seen struct {
	entry
	at, changed time.Duration
}

// kind says what a write does.
type kind string

const (
	begin   kind = "begin a session"
	renew   kind = "renew the session"
	finish  kind = "end the session"
	fence   kind = "end the session of a lost node"
	take    kind = "take an address"
	release kind = "give an address back"
)

// action is a write that must be taken only if the entry still has the version.
type action struct {
	kind kind
	// entry is what to write; its version is that to replace, 0 to create it.
	entry entry
	// sent is when the write was decided, before it is sent.
	sent time.Duration
}

// core decides what one node claims. It knows of no clock: now is a length of
// time that only grows.
type core struct {
	self string
	timing
	wants map[netip.Addr]want
	// since is when an address was first wanted.
	since   map[netip.Addr]time.Duration
	entries map[string]seen
	// session is the id of this node's session, empty without one; sent is when
	// its last renewal was sent of those that were taken, idle since when it
	// has no address.
	session    string
	sent, idle time.Duration
	held       map[netip.Addr]bool
	// busy are the entries that are being written, rest those that are not to
	// be written before a time.
	busy map[string]bool
	rest map[string]time.Duration
}

func newCore(self string, t timing) *core {
	return &core{self: self, timing: t, since: map[netip.Addr]time.Duration{}, entries: map[string]seen{}, held: map[netip.Addr]bool{},
		busy: map[string]bool{}, rest: map[string]time.Duration{}}
}

// setWants replaces what is wanted.
func (c *core) setWants(now time.Duration, wants map[netip.Addr]want) {
	for a := range wants {
		if _, known := c.wants[a]; !known {
			c.since[a] = now
		}
	}
	maps.DeleteFunc(c.since, func(a netip.Addr, _ time.Duration) bool { _, ok := wants[a]; return !ok })
	c.wants = wants
}

// observe takes in an entry as the API has it. Older news than what is known is
// dropped.
func (c *core) observe(now time.Duration, e entry) {
	was := c.entries[e.name]
	if e.version <= was.version {
		return
	}
	is := seen{e, now, now}
	if was.holder == e.holder && was.id() == e.id() && was.deleted == e.deleted {
		is.changed = was.changed
	}
	c.entries[e.name] = is
	if e.name == sessionName(c.self) {
		if c.session != "" && (e.deleted || e.holder != c.self || e.id() != c.session) {
			c.lose()
		}
		return
	}
	if a, ok := addressOf(e.name); ok {
		if c.owns(e) {
			c.held[a] = true
		} else {
			delete(c.held, a)
		}
	}
}

func addressOf(name string) (netip.Addr, bool) {
	text, ok := strings.CutPrefix(name, "address.")
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return a, err == nil
}

// owns says whether a record is this node's.
func (c *core) owns(e entry) bool {
	return !e.deleted && c.session != "" && e.holder == c.self && e.session == c.session
}

func (c *core) lose() {
	c.session = ""
	clear(c.held)
}

// announced are the addresses that this node answers for, until a time that may
// be over.
func (c *core) announced() (addrs []netip.Addr, until time.Duration) {
	return slices.SortedFunc(maps.Keys(c.held), netip.Addr.Compare), c.sent + c.term
}

// done takes in how a write ended: the entry as it is now if it was taken or if
// it is known, else nil.
func (c *core) done(now time.Duration, a action, is *entry, taken bool) {
	delete(c.busy, a.entry.name)
	if !taken {
		c.rest[a.entry.name] = now + c.retry
	}
	if is == nil {
		return
	}
	// A newer version that is known already may be the end of the session.
	if taken && a.kind == begin && is.version >= c.entries[is.name].version {
		c.lose()
		c.session, c.idle = is.id(), now
	}
	if taken && (a.kind == begin || a.kind == renew) && c.session == is.id() {
		c.sent = max(c.sent, a.sent)
	}
	c.observe(now, *is)
	if !taken && is.version > a.entry.version {
		delete(c.rest, a.entry.name) // it was another's turn: decide anew
	}
}

// step returns what to write now, and when to look again if nothing happens.
func (c *core) step(now time.Duration) (do []action, wake time.Duration) {
	p := &pass{core: c, now: now, wake: now + time.Hour}
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		e := c.entries[name].entry
		a, ok := addressOf(name)
		if w := c.wants[a]; !ok || !c.owns(e) || w.fit {
			continue
		}
		e.holder, e.session = "", ""
		if p.write(release, e) {
			delete(c.held, a) // before the write, not after it
		}
	}
	need := len(c.held) > 0
	for _, a := range slices.SortedFunc(maps.Keys(c.wants), netip.Addr.Compare) {
		if w := c.wants[a]; !c.held[a] && w.fit && slices.Contains(w.order, c.self) {
			need = p.claim(a, w) || need
		}
	}
	p.keep(need)
	return p.do, p.wake
}

// stop gives everything back at once.
func (c *core) stop(now time.Duration) (action, bool) {
	if c.session == "" {
		return action{}, false
	}
	e := c.entries[sessionName(c.self)].entry
	e.holder = ""
	c.lose()
	return action{kind: finish, entry: e, sent: now}, true
}

// pass is one step.
type pass struct {
	*core
	now, wake time.Duration
	do        []action
}

// at asks to be woken.
func (p *pass) at(t time.Duration) {
	if t > p.now {
		p.wake = min(p.wake, t)
	}
}

func (p *pass) write(k kind, e entry) bool {
	if p.busy[e.name] {
		return false // its end wakes
	}
	if t := p.rest[e.name]; t > p.now {
		p.at(t)
		return false
	}
	if (k == take || k == release) && len(p.busy) >= mostWrites {
		return false
	}
	delete(p.rest, e.name)
	p.busy[e.name] = true
	p.do = append(p.do, action{k, e, p.now})
	return true
}

// claim takes an address that nobody has when it is this node's turn, and ends
// the session of a node that has it but is lost. It says whether a session is
// needed for that.
func (p *pass) claim(a netip.Addr, w want) bool {
	rec := p.entries[recordName(a)]
	prior := p.entries[sessionName(rec.holder)]
	free, since := p.free(a, rec)
	if !free {
		lapse := since + p.rank(w, rec)*p.stagger
		if p.now < lapse {
			p.at(lapse)
			return false
		}
		if rec.holder == p.self {
			return true // an earlier life of this node: a new session ends that
		}
		e := prior.entry
		if prior.deleted || prior.version == 0 {
			e = entry{name: sessionName(rec.holder)}
		}
		e.holder = ""
		p.write(fence, e)
		return true
	}
	due := since + p.rank(w, rec)*p.stagger
	if p.now < due {
		p.at(due)
		return false
	}
	if p.session != "" && p.now < p.sent+p.term {
		e := rec.entry
		if e.deleted || e.version == 0 {
			e = entry{name: recordName(a)}
		}
		e.holder, e.session = p.self, p.session
		p.write(take, e)
	}
	return true
}

// free says whether nobody may be answering for an address, and since when. If
// somebody may, since is when the session of the holder can be fenced.
func (p *pass) free(a netip.Addr, rec seen) (free bool, since time.Duration) {
	if rec.version == 0 {
		return true, p.since[a]
	}
	since = max(rec.changed, p.since[a])
	if rec.deleted || rec.holder == "" || p.owns(rec.entry) {
		// One that is this node's but not held was given back by a write that
		// may still be taken: writing it again decides.
		return true, since
	}
	s := p.entries[sessionName(rec.holder)]
	uid, turn := splitID(rec.session)
	switch same := !s.deleted && s.uid == uid; {
	case same && (s.turn > turn || s.turn == turn && s.holder == ""):
		return true, max(since, s.changed)
	case !same && s.version > rec.version:
		// Somebody meddled: its node may answer for the rest of its term.
		over := max(rec.at, s.changed) + p.timing.wait
		return p.now >= over, over
	case rec.holder == p.self:
		// Another process of this node wrote it, and has ended.
		return false, p.now
	}
	// The session goes on, or what is known of it is older than the record: the
	// attempt to end it tells.
	return false, max(s.at, rec.at) + p.timing.wait
}

// rank is how many candidates go first. A holder that began anew keeps what it
// had; one whose session is over, and all that are lost, are out.
func (p *pass) rank(w want, rec seen) time.Duration {
	prior := p.entries[sessionName(rec.holder)]
	back := rec.holder != "" && prior.holder == rec.holder && prior.id() != rec.session
	if rec.holder == p.self {
		return 0
	}
	var n time.Duration
	if back && slices.Contains(w.order, rec.holder) {
		n = 1
	}
	for _, x := range w.order {
		if x == p.self {
			break
		}
		s := p.entries[sessionName(x)]
		lost := s.holder == x && p.now >= s.at+p.timing.wait
		if x != rec.holder && !lost {
			n++
		}
	}
	return n
}

// keep begins, renews and ends this node's session.
func (p *pass) keep(need bool) {
	name := sessionName(p.self)
	e := p.entries[name].entry
	if need {
		p.core.idle = p.now
	}
	switch {
	case p.session == "" && need:
		if e.deleted {
			e = entry{}
		}
		e.name, e.holder, e.turn = name, p.self, e.turn+1
		p.write(begin, e)
	case p.session == "":
	case !need && p.now >= p.core.idle+p.linger:
		e.holder = ""
		if p.write(finish, e) {
			p.lose()
		}
	default:
		if !need {
			p.at(p.core.idle + p.linger)
		}
		if due := p.sent + p.timing.renew; p.now < due {
			p.at(due)
		} else {
			p.write(renew, e)
		}
		p.at(p.sent + p.term)
	}
}

// sorted puts names into the order of a hash of a key and each of them
// (rendezvous hashing): one name more or less moves no other.
func sorted(key string, names []string) []string {
	return slices.SortedFunc(slices.Values(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(hash(key, a), hash(key, b)), strings.Compare(a, b))
	})
}
