package health

import (
	"math"
	"strings"
	"time"
)

// Disruption is how much of a zone is silent or not ready.
type Disruption uint8

// Full is a zone without a ready node; Partial one with more than two nodes,
// and at least the threshold's share of all, not ready.
const (
	Normal Disruption = iota
	Partial
	Full
)

func (d Disruption) String() string {
	return [...]string{"Normal", "PartialDisruption", "FullDisruption"}[d]
}

// disruption judges a zone by its numbers.
func disruption(ready, notReady int, threshold float64) Disruption {
	switch {
	case ready == 0 && notReady > 0:
		return Full
	case notReady > 2 && float64(notReady)/float64(ready+notReady) >= threshold:
		return Partial
	}
	return Normal
}

// zone is a set of nodes that share a fate and therefore a token bucket.
type zone struct {
	name            string
	members         int
	ready, notReady int // without excluded nodes
	state           Disruption
	stale           bool // numbers changed since state was judged
	bucket          bucket
	timer           timer
	queue           []ticket // nodes that wait for a token, first come first served
	waiting         int      // tickets of queue that still count
	// holder is the node whose token state is holding, nil if none is. It may use
	// the token until lapse.
	holder *node
	lapse  time.Time
	// writing is the node whose NoExecute taint is being written, computed from
	// writingVersion of it. It may have lost its token meanwhile.
	writing        *node
	writingVersion string
	// shot is the view that all decisions of one Advance share, and granted how
	// many tokens that Advance spent.
	shot    *ZoneView
	granted int
}

// ticket is a node's entry in its zone's queue; it counts only while the node
// still has that number.
type ticket struct {
	node   *node
	number uint64
}

func (z *zone) counted() bool { return z.ready+z.notReady > 0 }

// rate is how many nodes a second may get a NoExecute taint.
func (z *zone) rate(s Settings, suspended bool) float64 {
	switch {
	case suspended:
		return 0
	case z.state != Partial:
		return s.EvictionRate
	case z.ready+z.notReady > s.LargeZone:
		return s.SecondaryEvictionRate
	}
	return 0
}

// first takes the node that has waited longest out of the queue; some node must
// be waiting. The node is waiting until becomeHolder.
func (z *zone) first() *node {
	for {
		t := z.queue[0]
		z.queue[0] = ticket{}
		z.queue = z.queue[1:]
		if t.node.ticket == t.number {
			return t.node
		}
	}
}

// view is a copy of the numbers for explanations.
func (z *zone) view(now time.Time) ZoneView {
	return ZoneView{Name: ZoneName(z.name), State: z.state, Ready: z.ready, NotReady: z.notReady,
		Rate: z.bucket.rate, Tokens: z.bucket.at(now), Waiting: z.waiting}
}

// snapshot is the zone's view at the end of the Advance that is under way.
func (z *zone) snapshot(now time.Time) *ZoneView {
	if z.shot == nil {
		v := z.view(now)
		z.shot = &v
	}
	return z.shot
}

// nowhere is the zone of decisions that are about no zone.
var nowhere = &ZoneView{}

// ZoneView is a zone's state at one moment. Rate is NoExecute taints a second.
type ZoneView struct {
	Name            string
	State           Disruption
	Ready, NotReady int
	Rate, Tokens    float64
	Waiting         int
}

// ZoneName is a zone's key as people write it: region/zone.
func ZoneName(key string) string { return strings.Replace(key, ":\x00:", "/", 1) }

// bucket is a token bucket that holds one token at most. A change of rate
// keeps what is in it: changing rates to and fro earns nothing.
type bucket struct {
	rate   float64
	tokens float64
	since  time.Time
}

func (b *bucket) at(now time.Time) float64 {
	if now.Before(b.since) {
		return b.tokens
	}
	return math.Min(1, b.tokens+now.Sub(b.since).Seconds()*b.rate)
}

func (b *bucket) setRate(now time.Time, rate float64) {
	b.tokens = b.at(now)
	if now.After(b.since) {
		b.since = now
	}
	b.rate = rate
}

// nearly absorbs what floating point loses: a billionth of a token.
const nearly = 1 - 1e-9

// take spends a token if there is one. A rate of 0 closes the bucket, full or
// not.
func (b *bucket) take(now time.Time) bool {
	if b.rate <= 0 || b.at(now) < nearly {
		return false
	}
	b.tokens = b.at(now) - 1
	if now.After(b.since) {
		b.since = now
	}
	return true
}

// drain empties the bucket.
func (b *bucket) drain(now time.Time) {
	b.tokens = 0
	if now.After(b.since) {
		b.since = now
	}
}

// interval is how long a token takes to come; the rate must not be 0.
func (b *bucket) interval() time.Duration {
	return time.Duration(math.Ceil(float64(time.Second) / b.rate))
}

// next is when a token will be there; ok is false for never.
func (b *bucket) next(now time.Time) (at time.Time, ok bool) {
	if b.rate <= 0 {
		return time.Time{}, false
	}
	missing := math.Max(0, 1-b.at(now))
	return now.Add(time.Duration(math.Ceil(missing / b.rate * float64(time.Second)))), true
}
