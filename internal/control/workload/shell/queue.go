package shell

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/heap"
)

// Back-off of a key whose sync failed: doubling, with up to half as much
// random time on top so that failures do not march in step.
const (
	backoffFirst = 20 * time.Millisecond
	backoffMost  = 2 * time.Minute
)

// Queue runs a function for keys: at once, or at a deadline; never twice at
// the same time for one key; again, later and later, while it fails. It uses
// no timer and no goroutine while there is nothing to do.
type Queue struct {
	mu      sync.Mutex
	ready   []string
	queued  map[string]bool // in ready
	running map[string]bool // value: asked for again meanwhile
	due     *heap.Heap[*dueItem]
	at      map[string]*dueItem
	fails   map[string]int
	wake    chan struct{}
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{queued: map[string]bool{}, running: map[string]bool{}, at: map[string]*dueItem{},
		due:   heap.New(func(a, b *dueItem) bool { return a.when.Before(b.when) }, func(it *dueItem) *heap.Place { return &it.place }),
		fails: map[string]int{}, wake: make(chan struct{}, 1)}
}

// Add asks for a key as soon as possible.
func (q *Queue) Add(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

func (q *Queue) add(key string) {
	if _, ok := q.running[key]; ok {
		q.running[key] = true
		return
	}
	if !q.queued[key] {
		q.queued[key] = true
		q.ready = append(q.ready, key)
		q.signal()
	}
}

// After asks for a key once d has passed; an earlier deadline for it stays.
func (q *Queue) After(key string, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	when := time.Now().Add(d)
	if it := q.at[key]; it != nil {
		if when.Before(it.when) {
			it.when = when
			q.due.Put(it)
			q.signal()
		}
		return
	}
	it := &dueItem{key: key, when: when}
	q.at[key] = it
	q.due.Put(it)
	q.signal()
}

// Len returns how many keys wait to run now.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready)
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take moves due keys to ready and pops one; with none ready it returns how
// long until the next deadline, or a negative duration for "until woken".
func (q *Queue) take() (key string, ok bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for q.due.Len() > 0 && !q.due.First().when.After(now) {
		it := q.due.Pop()
		delete(q.at, it.key)
		q.add(it.key)
	}
	if len(q.ready) == 0 {
		if q.due.Len() == 0 {
			return "", false, -1
		}
		return "", false, q.due.First().when.Sub(now)
	}
	key = q.ready[0]
	q.ready = q.ready[1:]
	delete(q.queued, key)
	q.running[key] = false
	return key, true, 0
}

func (q *Queue) done(key string, failed bool) {
	q.mu.Lock()
	again := q.running[key]
	delete(q.running, key)
	if again {
		q.add(key)
	}
	var delay time.Duration
	if failed {
		n := q.fails[key]
		q.fails[key] = n + 1
		delay = min(backoffFirst<<min(n, 20), backoffMost)
		delay += rand.N(delay/2 + 1)
	} else {
		delete(q.fails, key)
	}
	q.mu.Unlock()
	if failed {
		q.After(key, delay)
	}
}

// Sync looks at one key and brings the world closer to what it asks. It
// returns when to look again by itself (0: only when something changes).
type Sync func(ctx context.Context, key string) (again time.Duration, err error)

// Run works off the queue with at most the given number of syncs at a time,
// until the context ends and the running ones have returned.
func (e Env) Run(ctx context.Context, q *Queue, workers int, sync1 Sync) error {
	slots := make(chan struct{}, workers)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		key, ok := q.next(ctx)
		if !ok {
			return nil
		}
		wg.Go(func() {
			defer func() { <-slots }()
			e.once(ctx, q, key, sync1)
		})
	}
}

// next blocks until a key is to be run; ok is false when the context ended.
func (q *Queue) next(ctx context.Context) (string, bool) {
	for {
		key, ok, wait := q.take()
		if ok {
			return key, ctx.Err() == nil
		}
		var timer <-chan time.Time
		var t *time.Timer
		if wait >= 0 {
			t = time.NewTimer(wait)
			timer = t.C
		}
		select {
		case <-q.wake:
		case <-timer:
		case <-ctx.Done():
			return "", false
		}
		if t != nil {
			t.Stop()
		}
	}
}

func (e Env) once(ctx context.Context, q *Queue, key string, f Sync) {
	start := time.Now()
	again, err := guarded(ctx, key, f)
	e.Metrics.duration.WithLabelValues(e.Name).Observe(time.Since(start).Seconds())
	if err != nil && ctx.Err() == nil {
		e.Metrics.syncs.WithLabelValues(e.Name, "retry").Inc()
		e.Log.Warn("will try again", "object", key, "error", err)
	} else {
		e.Metrics.syncs.WithLabelValues(e.Name, "ok").Inc()
	}
	q.done(key, err != nil)
	if err == nil && again > 0 {
		q.After(key, again)
	}
}

// guarded turns a panic over one object into an error about that object.
func guarded(ctx context.Context, key string, f Sync) (again time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("looking at %s: panic: %v\n%s", key, r, debug.Stack())
		}
	}()
	return f(ctx, key)
}

type dueItem struct {
	key   string
	when  time.Time
	place heap.Place
}
