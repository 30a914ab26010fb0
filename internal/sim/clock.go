package sim

import "time"

// event is something that happens at a virtual time. Heartbeats are by far the
// most frequent, so they carry a node and no closure.
type event struct {
	at   time.Duration
	seq  uint64 // of events at one time the first made comes first
	beat *node
	run  func()
}

// clock is virtual time and what is to happen in it: a heap with four children
// a parent, which for events stored by value beats one with two.
type clock struct {
	now  time.Duration
	seq  uint64
	heap []event
}

// epoch is when every simulation begins. The date means nothing; it is fixed
// so that output does not depend on the day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *clock) time() time.Time { return epoch.Add(c.now) }

func (c *clock) at(when time.Duration, run func()) { c.push(event{at: max(when, c.now), run: run}) }

func (c *clock) after(d time.Duration, run func()) { c.at(c.now+d, run) }

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (c *clock) push(e event) {
	c.seq++
	e.seq = c.seq
	h := append(c.heap, e)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
	c.heap = h
}

// pop takes the next event and moves time to it; ok is false when there is
// none before the end.
func (c *clock) pop(end time.Duration) (e event, ok bool) {
	if len(c.heap) == 0 || c.heap[0].at > end {
		return event{}, false
	}
	h := c.heap
	e = h[0]
	last := h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	c.heap = h
	if len(h) > 0 {
		i := 0
		for {
			least, first := -1, 4*i+1
			for k := first; k < first+4 && k < len(h); k++ {
				if least < 0 || h[k].before(&h[least]) {
					least = k
				}
			}
			if least < 0 || !h[least].before(&last) {
				break
			}
			h[i] = h[least]
			i = least
		}
		h[i] = last
	}
	c.now = e.at
	return e, true
}
