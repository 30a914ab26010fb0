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
	at int64 // nanoseconds since 1970
	t  *timer
}

// timers is a min-heap by time in which each slot has four children: half as
// deep as one with two.
type timers []slot

const children = 4

// first is the earliest time; ok is false when the heap is empty.
func (h timers) first() (at time.Time, ok bool) {
	if len(h) == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, h[0].at), true
}

// due takes the earliest timer out of the heap if its time has come, nil if not.
func (h *timers) due(now time.Time) *timer {
	if len(*h) == 0 || (*h)[0].at > now.UnixNano() {
		return nil
	}
	t := (*h)[0].t
	h.remove(t)
	return t
}

// set puts t at the given time, wherever it is now.
func (h *timers) set(t *timer, at time.Time) {
	s := slot{at: at.UnixNano(), t: t}
	if t.index < 0 {
		*h = append(*h, s)
		h.up(len(*h)-1, s)
		return
	}
	h.settle(t.index, s)
}

// remove takes t out; a timer outside the heap stays there.
func (h *timers) remove(t *timer) {
	i := t.index
	if i < 0 {
		return
	}
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[last] = slot{}
	*h = (*h)[:last]
	t.index = -1
	if i < last {
		h.settle(i, moved)
	}
}

// settle puts s where it belongs, starting from the hole at i.
func (h timers) settle(i int, s slot) {
	if i > 0 && s.at < h[(i-1)/children].at {
		h.up(i, s)
		return
	}
	h.down(i, s)
}

func (h timers) put(i int, s slot) {
	h[i] = s
	s.t.index = i
}

func (h timers) up(i int, s slot) {
	for i > 0 {
		parent := (i - 1) / children
		if h[parent].at <= s.at {
			break
		}
		h.put(i, h[parent])
		i = parent
	}
	h.put(i, s)
}

func (h timers) down(i int, s slot) {
	for {
		least, at := i, s.at
		for c := children*i + 1; c <= children*i+children && c < len(h); c++ {
			if h[c].at < at {
				least, at = c, h[c].at
			}
		}
		if least == i {
			break
		}
		h.put(i, h[least])
		i = least
	}
	h.put(i, s)
}
