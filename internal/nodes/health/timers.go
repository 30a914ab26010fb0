package health

import "time"

// timer is an entry of the deadline heap. Its time in the heap may lie before
// the owner's true deadline: heartbeats only move deadlines later, so they leave
// the heap alone and an early timer is put back when it surfaces. That makes a
// heartbeat O(1).
type timer struct {
	index int // place in the heap, -1 outside it
	node  *node
	zone  *zone
}

// slot is a timer's place in the heap. The time stands beside the pointer and
// not behind it: a mass expiry compares millions of them.
type slot struct {
	at int64 // nanoseconds since the heap's base
	t  *timer
}

// timers is a min-heap by time in which each slot has four children: half as
// deep as one with two. Times are kept as distances from base, so that those
// that have a monotonic reading are compared by it: when the wall clock is set,
// no deadline moves. The base is set before the first use.
type timers struct {
	base  time.Time
	slots []slot
}

const children = 4

// first is the earliest time; ok is false when the heap is empty.
func (h *timers) first() (at time.Time, ok bool) {
	if len(h.slots) == 0 {
		return time.Time{}, false
	}
	return h.base.Add(time.Duration(h.slots[0].at)), true
}

// due takes the earliest timer out of the heap if its time has come, nil if not.
func (h *timers) due(now time.Time) *timer {
	if len(h.slots) == 0 || h.slots[0].at > int64(now.Sub(h.base)) {
		return nil
	}
	t := h.slots[0].t
	h.remove(t)
	return t
}

// set puts t at the given time, wherever it is now.
func (h *timers) set(t *timer, at time.Time) {
	s := slot{at: int64(at.Sub(h.base)), t: t}
	if t.index < 0 {
		h.slots = append(h.slots, s)
		h.up(len(h.slots)-1, s)
		return
	}
	h.sift(t.index, s)
}

// remove takes t out; a timer outside the heap stays there.
func (h *timers) remove(t *timer) {
	i := t.index
	if i < 0 {
		return
	}
	last := len(h.slots) - 1
	moved := h.slots[last]
	h.slots[last] = slot{}
	h.slots = h.slots[:last]
	t.index = -1
	if i < last {
		h.sift(i, moved)
	}
}

// sift moves s up or down from the hole at i until the heap is in order.
func (h *timers) sift(i int, s slot) {
	if i > 0 && s.at < h.slots[(i-1)/children].at {
		h.up(i, s)
		return
	}
	h.down(i, s)
}

func (h *timers) put(i int, s slot) {
	h.slots[i] = s
	s.t.index = i
}

func (h *timers) up(i int, s slot) {
	for i > 0 {
		parent := (i - 1) / children
		if h.slots[parent].at <= s.at {
			break
		}
		h.put(i, h.slots[parent])
		i = parent
	}
	h.put(i, s)
}

func (h *timers) down(i int, s slot) {
	for {
		least, at := i, s.at
		for c := children*i + 1; c <= children*i+children && c < len(h.slots); c++ {
			if h.slots[c].at < at {
				least, at = c, h.slots[c].at
			}
		}
		if least == i {
			break
		}
		h.put(i, h.slots[least])
		i = least
	}
	h.put(i, s)
}
