package dns

import (
	"container/list"
	"time"

	mdns "github.com/miekg/dns"
)

const (
	cacheEntries = 10_000
	// longest a forwarded answer, and the knowledge that there is none, is
	// kept although its records would allow more.
	longestPositive = 5 * time.Minute
	longestNegative = 30 * time.Second
	// stale is how long after its end an answer is still given when no
	// upstream answers; it then says staleTTL seconds.
	stale    = time.Hour
	staleTTL = 30
)

// question is what an upstream answer depends on.
type question struct {
	name     string // lower case
	kind     uint16
	class    uint16
	dnssec   bool // the asker wants signatures
	checking bool // the asker checks them itself
}

// answers remembers what upstreams said: at most limit entries, the least
// recently used goes first. Callers order its use.
type answers struct {
	limit   int
	entries map[question]*list.Element
	recent  *list.List // of *entry, most recently used first
}

type entry struct {
	question question
	msg      *mdns.Msg
	stored   time.Time
	until    time.Time
}

func newAnswers(limit int) *answers {
	return &answers{limit: limit, entries: map[question]*list.Element{}, recent: list.New()}
}

// put remembers msg if it may be remembered. The cache owns msg from now on.
func (a *answers) put(now time.Time, q question, msg *mdns.Msg) {
	keep := lifetime(msg)
	if keep <= 0 {
		return
	}
	e := &entry{question: q, msg: msg, stored: now, until: now.Add(keep)}
	if el, ok := a.entries[q]; ok {
		el.Value = e
		a.recent.MoveToFront(el)
		return
	}
	a.entries[q] = a.recent.PushFront(e)
	if len(a.entries) > a.limit {
		last := a.recent.Back()
		a.recent.Remove(last)
		delete(a.entries, last.Value.(*entry).question)
	}
}

// get returns a copy with the time that has passed taken off its TTLs, nil if
// there is none. fresh is false for an answer that has ended but may still
// serve when no one else answers.
func (a *answers) get(now time.Time, q question) (msg *mdns.Msg, fresh bool) {
	el, ok := a.entries[q]
	if !ok {
		return nil, false
	}
	e := el.Value.(*entry)
	if !now.Before(e.until.Add(stale)) {
		a.recent.Remove(el)
		delete(a.entries, q)
		return nil, false
	}
	a.recent.MoveToFront(el)
	fresh = now.Before(e.until)
	passed := uint32(max(now.Sub(e.stored), 0) / time.Second)
	msg = e.msg.Copy()
	most := uint32(e.until.Sub(e.stored) / time.Second)
	for _, section := range [][]mdns.RR{msg.Answer, msg.Ns, msg.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == mdns.TypeOPT {
				continue // its TTL field holds flags
			}
			if !fresh {
				rr.Header().Ttl = staleTTL
				continue
			}
			t := min(rr.Header().Ttl, most)
			rr.Header().Ttl = t - min(t, passed)
		}
	}
	return msg, fresh
}

// lifetime is how long an answer may be kept: the least TTL of its records,
// for an answer that there is nothing the SOA's (RFC 2308), within our own
// bounds. Errors and truncated answers are not kept.
func lifetime(m *mdns.Msg) time.Duration {
	if m.Truncated || m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError {
		return 0
	}
	least := longestPositive
	negative := m.Rcode == mdns.RcodeNameError || len(m.Answer) == 0
	if negative {
		least = 0 // without a SOA it must not be kept
		for _, rr := range m.Ns {
			if soa, ok := rr.(*mdns.SOA); ok {
				least = min(longestNegative, time.Duration(min(soa.Hdr.Ttl, soa.Minttl))*time.Second)
			}
		}
	}
	for _, section := range [][]mdns.RR{m.Answer, m.Ns} {
		for _, rr := range section {
			least = min(least, time.Duration(rr.Header().Ttl)*time.Second)
		}
	}
	return least
}
