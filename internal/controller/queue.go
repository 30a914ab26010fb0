package controller

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/heap"
)

// usualBackoff is that of a queue made with NewQueue.
var usualBackoff = Backoff{First: 20 * time.Millisecond, Most: 2 * time.Minute}

// Queue runs a function for keys: at once, or at a deadline; never twice at
// the same time for one key; again, later and later, while it fails. It uses
// no timer and no goroutine while there is nothing to do.
type Queue struct {
	backoff Backoff
	metrics *queueMetrics // nil: not measured

	mu      sync.Mutex
	ready   []string
	queued  map[string]time.Time // in ready: since when
	running map[string]run
	due     *heap.Heap[*dueItem]
	at      map[string]*dueItem
	fails   map[string]int
	wake    chan struct{}
}

// run is a key that is worked on.
type run struct {
	since time.Time
	again bool // asked for meanwhile
}

type dueItem struct {
	key   string
	when  time.Time
	place heap.Place
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{backoff: usualBackoff, queued: map[string]time.Time{}, running: map[string]run{}, at: map[string]*dueItem{},
		due:   heap.New(func(a, b *dueItem) bool { return a.when.Before(b.when) }, func(it *dueItem) *heap.Place { return &it.place }),
		fails: map[string]int{}, wake: make(chan struct{}, 1)}
}

// WithBackoff gives a queue that nobody uses yet a back-off of its own.
func (q *Queue) WithBackoff(b Backoff) *Queue {
	q.backoff = b
	return q
}

// NewMeasuredQueue returns an empty queue with a back-off of its own, whose
// length and speed the workqueue_* metrics show under a name.
func NewMeasuredQueue(name string, backoff Backoff) *Queue {
	q := NewQueue().WithBackoff(backoff)
	q.metrics = measure(name, q)
	return q
}

// Add asks for a key as soon as possible.
func (q *Queue) Add(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

func (q *Queue) add(key string) {
	if _, ok := q.queued[key]; ok {
		return
	}
	r, ok := q.running[key]
	if ok && r.again {
		return
	}
	q.metrics.added()
	if ok {
		r.again = true
		q.running[key] = r
		return
	}
	q.push(key)
}

// push puts a key that is neither ready nor running at the end of the line.
func (q *Queue) push(key string) {
	q.queued[key] = time.Now()
	q.ready = append(q.ready, key)
	q.signal()
}

// After asks for a key once d has passed; an earlier deadline for it stays.
func (q *Queue) After(key string, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.metrics.retried()
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
	q.metrics.taken(now.Sub(q.queued[key]))
	delete(q.queued, key)
	q.running[key] = run{since: now}
	return key, true, 0
}

// done ends a run. After a failure the key comes again by itself.
func (q *Queue) done(key string, failed bool) {
	q.mu.Lock()
	r := q.running[key]
	delete(q.running, key)
	q.metrics.worked(time.Since(r.since))
	if r.again {
		q.push(key)
	}
	if !failed {
		delete(q.fails, key)
		q.mu.Unlock()
		return
	}
	q.fails[key]++
	delay := q.backoff.Jittered(q.fails[key])
	q.mu.Unlock()
	q.After(key, delay)
}

// work is what runs now: for how long in sum, and the longest.
func (q *Queue) work(now time.Time) (sum, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.running {
		d := now.Sub(r.since)
		sum, longest = sum+d, max(longest, d)
	}
	return sum, longest
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

// Outcome is what became of one key of a batch.
type Outcome struct {
	Again time.Duration
	Err   error
}

// RunBatches is Run for a function that looks at up to most keys at once: all
// that are due. A key without an outcome has succeeded.
func (e Env) RunBatches(ctx context.Context, q *Queue, most int, f func(ctx context.Context, keys []string) map[string]Outcome) error {
	for {
		key, ok := q.next(ctx)
		if !ok {
			return nil
		}
		keys := []string{key}
		for len(keys) < most {
			if key, ok, _ = q.take(); !ok {
				break
			}
			keys = append(keys, key)
		}
		outcomes := f(ctx, keys)
		for _, key := range keys {
			o := outcomes[key]
			e.ended(ctx, q, key, o.Again, o.Err)
		}
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
	e.Metrics.observe(e.Name, time.Since(start), err != nil && ctx.Err() == nil)
	e.ended(ctx, q, key, again, err)
}

// ended notes the end of a sync and sees to the next one.
func (e Env) ended(ctx context.Context, q *Queue, key string, again time.Duration, err error) {
	if err != nil && ctx.Err() == nil {
		// Somebody else wrote first: the object's own event is on its way.
		level := e.Log.Warn
		if apierrors.IsConflict(err) {
			level = e.Log.Debug
		}
		level("will try again", "object", key, "err", err)
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
