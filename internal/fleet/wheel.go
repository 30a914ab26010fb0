package fleet

import (
	"context"
	"sync"
	"time"
)

// job is something that is done again and again: when it said it would be due,
// or earlier if someone kicks it. It never runs twice at a time.
type job struct {
	// step does what is due and says when it is due again, zero for not by
	// itself.
	step func(ctx context.Context) time.Time
	pool *pool

	due   time.Time // zero: not planned
	tick  int64     // the wheel's slot that counts for due
	state jobState
}

type jobState uint8

const (
	idle jobState = iota
	queued
	running
	again // running, and asked for meanwhile
)

// The wheel's resolution and size. What is due later than one turn is looked at
// once a turn.
const (
	tick  = 50 * time.Millisecond
	slots = 1024
)

// wheel plans jobs: setting one is O(1) however many there are. It is pure, and
// not safe for concurrent use.
type wheel struct {
	start time.Time
	now   int64 // ticks done
	slot  [slots][]*job
}

func (w *wheel) tickOf(at time.Time) int64 {
	// Rounded up: nothing is done early.
	return int64((at.Sub(w.start) + tick - 1) / tick)
}

// set plans a job, in place of when it was planned before.
func (w *wheel) set(j *job, at time.Time) {
	t := max(w.tickOf(at), w.now+1)
	if !j.due.IsZero() && j.tick <= t && j.tick > w.now {
		j.due = at // its slot comes first and puts it on
		return
	}
	j.due, j.tick = at, t
	w.slot[t%slots] = append(w.slot[t%slots], j)
}

// advance moves to a time and returns the jobs that are due by then, in the
// order of their slots.
func (w *wheel) advance(now time.Time) (due []*job) {
	to := int64(now.Sub(w.start) / tick)
	for w.now < to {
		w.now++
		list := w.slot[w.now%slots]
		w.slot[w.now%slots] = list[:0]
		var later []*job
		for i, j := range list {
			list[i] = nil
			switch {
			case j.due.IsZero() || j.tick%slots != w.now%slots:
				// It was planned again, in another slot, or is not planned.
			case w.tickOf(j.due) <= w.now:
				j.due = time.Time{}
				due = append(due, j)
			default:
				later = append(later, j)
			}
		}
		for _, j := range later {
			j.tick = w.tickOf(j.due)
			w.slot[j.tick%slots] = append(w.slot[j.tick%slots], j)
		}
	}
	return due
}

// clock turns the wheel.
type clock struct {
	mu    sync.Mutex
	wheel wheel
}

func newClock() *clock { return &clock{wheel: wheel{start: time.Now()}} }

func (c *clock) set(j *job, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wheel.set(j, at)
}

// run hands jobs to their crews when they are due, until ctx ends.
func (c *clock) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			c.mu.Lock()
			due := c.wheel.advance(now)
			c.mu.Unlock()
			for _, j := range due {
				j.pool.trigger(j)
			}
		}
	}
}

// pool is a number of workers and a queue of jobs for them.
type pool struct {
	clock *clock
	mu    sync.Mutex
	some  *sync.Cond
	queue []*job
	ended bool
}

func newPool(c *clock) *pool {
	w := &pool{clock: c}
	w.some = sync.NewCond(&w.mu)
	return w
}

// trigger makes a job run now, or once more if it runs.
func (c *pool) trigger(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch j.state {
	case idle:
		j.state = queued
		c.queue = append(c.queue, j)
		c.some.Signal()
	case running:
		j.state = again
	}
}

// run works with so many workers until ctx ends.
func (c *pool) run(ctx context.Context, workers int) {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = true
		c.some.Broadcast()
	})()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { c.work(ctx) })
	}
	wg.Wait()
}

func (c *pool) work(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.queue) == 0 && !c.ended {
			c.some.Wait()
		}
		if c.ended {
			return
		}
		j := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		j.state = running
		c.mu.Unlock()
		next := j.step(ctx)
		c.mu.Lock()
		if j.state == again {
			j.state = queued
			c.queue = append(c.queue, j)
			continue
		}
		j.state = idle
		if !next.IsZero() {
			c.clock.set(j, next)
		}
	}
}
