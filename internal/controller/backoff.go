package controller

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait before a failed attempt is made again: First
// after the first failure, then twice as long each time, up to Most. Both are
// required. It is the only back-off of berth but for internal/supervise and
// internal/snapshot, which stand below this package and count differently: a
// part that ran for a while starts over, and a snapshot waits for its interval
// at most.
type Backoff struct {
	First, Most time.Duration
}

// Delay is the pause after the given number of failures in a row (1 or more),
// before jitter.
func (b Backoff) Delay(failures int) time.Duration {
	d := b.First
	for range failures - 1 {
		if d >= b.Most/2 {
			return b.Most
		}
		d *= 2
	}
	return min(d, b.Most)
}

// Jittered is Delay with up to half as much random time on top, so that many
// that failed together do not try again together.
func (b Backoff) Jittered(failures int) time.Duration {
	d := b.Delay(failures)
	return d + rand.N(d/2+1)
}

// Retry counts the failures in a row of one thing that is tried again and
// again. It is not safe for concurrent use.
type Retry struct {
	Backoff
	failures int
}

// Failed notes one more failure and returns how long to wait.
func (r *Retry) Failed() time.Duration {
	r.failures++
	return r.Jittered(r.failures)
}

// Succeeded forgets the failures.
func (r *Retry) Succeeded() { r.failures = 0 }

// Sleep waits for d. It returns false at once when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
