package health

import "time"

// timer is an entry of the deadline heap. at may lie before the owner's true
// deadline: heartbeats only move deadlines later, so they leave the heap alone
// and an early timer is put back when it surfaces. That makes a heartbeat O(1).
type timer struct {
	at    time.Time
	index int // place in the heap, -1 outside it
	node  *node
	zone  *zone
}

// timers is a min-heap by at.
type timers []*timer

// set puts t at the given time, wherever it is now.
func (h *timers) set(t *timer, at time.Time) {
	t.at = at
	if t.index < 0 {
		t.index = len(*h)
		*h = append(*h, t)
		h.up(t.index)
		return
	}
	h.down(h.up(t.index))
}

// remove takes t out; a timer outside the heap stays there.
func (h *timers) remove(t *timer) {
	i := t.index
	if i < 0 {
		return
	}
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = -1
	if i < last {
		h.down(h.up(i))
	}
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h timers) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].at.Before(h[parent].at) {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i
}

func (h timers) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].at.Before(h[least].at) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
