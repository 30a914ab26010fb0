package clustermodel

import "time"

// Epoch is when virtual time begins. The date means nothing; it is fixed so that
// output does not depend on the day.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Task is something that happens at a virtual time. A pointer or a Func costs no
// allocation as a Task: heartbeats are by far the most frequent tasks, so they are
// the hosts themselves.
type Task interface{ Do() }

// taskFunc is a function as a Task.
type taskFunc func()

// Do calls f.
func (f taskFunc) Do() { f() }

type event struct {
	at   time.Duration
	seq  uint64
	task Task
}

// Clock is virtual time and what is to happen in it: a heap with four children
// a parent, which for events stored by value is faster than one with two. Of
// tasks due at one time the first scheduled comes first, so a run is the same
// each time. The zero Clock stands at Epoch. It is not safe for concurrent use.
type Clock struct {
	// Now is the time since Epoch; Next and Run move it.
	Now  time.Duration
	seq  uint64
	heap []event
}

// Time is the present moment.
func (c *Clock) Time() time.Time { return Epoch.Add(c.Now) }

// At schedules run for a time since Epoch, or for now if that has passed.
func (c *Clock) At(when time.Duration, run func()) { c.Schedule(when, taskFunc(run)) }

// After schedules run for a time from now.
func (c *Clock) After(d time.Duration, run func()) { c.Schedule(c.Now+d, taskFunc(run)) }

// Schedule is At for a Task.
func (c *Clock) Schedule(when time.Duration, task Task) {
	c.seq++
	e := event{at: max(when, c.Now), seq: c.seq, task: task}
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

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// Next takes the next task that is due by end and moves time to it; ok is false
// when there is none.
func (c *Clock) Next(end time.Duration) (task Task, ok bool) {
	if len(c.heap) == 0 || c.heap[0].at > end {
		return nil, false
	}
	h := c.heap
	e := h[0]
	last := h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	c.heap = h
	if len(h) > 0 {
		sink(h, last)
	}
	c.Now = e.at
	return e.task, true
}

// sink puts last where it belongs, starting from the hole at the top.
func sink(h []event, last event) {
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

// Run does everything that is due within d, as long as goOn says so, and then moves
// time to its end.
func (c *Clock) Run(d time.Duration, goOn func() bool) {
	end := c.Now + d
	for goOn() {
		task, ok := c.Next(end)
		if !ok {
			break
		}
		task.Do()
	}
	c.Now = end
}
