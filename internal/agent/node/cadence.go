package node

import (
	"time"

	"github.com/berth-dev/berth/internal/controller"
)

// cadence decides when a status is posted. The zero value with both intervals
// set is ready to use; it has posted nothing yet.
type cadence struct {
	// Every is how often an unchanged status is posted (nodeStatusReportFrequency).
	Every time.Duration
	// Slow is the least time between posts that only slow changes ask for
	// (nodeStatusUpdateFrequency).
	Slow time.Duration

	posted   time.Time // last success; zero before the first
	forced   time.Time // when an unchanged status is due
	retry    time.Time // not before this after a failure; zero if none
	failures int
}

const (
	retryFirst = 100 * time.Millisecond
	retryCap   = 7 * time.Second
)

// Due tells whether to post now, given how the computed status differs from
// the posted one.
func (c *cadence) Due(now time.Time, change change) bool {
	if now.Before(c.retry) {
		return false
	}
	switch {
	case c.posted.IsZero(), change == UrgentChange, !now.Before(c.forced):
		return true
	case change == SlowChange:
		return !now.Before(c.posted.Add(c.Slow))
	}
	return false
}

// Wake is the latest time to ask again, for a status that differs by change.
func (c *cadence) Wake(change change) time.Time {
	at := c.forced
	if slow := c.posted.Add(c.Slow); change == SlowChange && slow.Before(at) {
		at = slow
	}
	if change == UrgentChange || c.posted.IsZero() {
		at = time.Time{}
	}
	if at.Before(c.retry) {
		return c.retry
	}
	return at
}

// Posted notes a success. After a changed status the next forced post is
// spread over half an interval to either side by jitter in [0, 1), so that a
// fleet that changed together does not report together ever after.
func (c *cadence) Posted(now time.Time, changed bool, jitter float64) {
	delay := c.Every
	if changed {
		delay += time.Duration((jitter - 0.5) * float64(c.Every))
	}
	c.posted, c.forced, c.retry, c.failures = now, now.Add(delay), time.Time{}, 0
}

// Failed notes a failure and backs off, doubling up to seven seconds; jitter
// in [0, 1) takes up to half of the delay off.
func (c *cadence) Failed(now time.Time, jitter float64) {
	c.retry = now.Add(backoff(c.failures, jitter))
	c.failures++
}

// backoff is the delay before try n (from 0): 100 ms doubling to 7 s, less up
// to half of it by jitter in [0, 1).
func backoff(n int, jitter float64) time.Duration {
	delay := controller.Backoff{First: retryFirst, Most: retryCap}.Delay(n + 1)
	return delay - time.Duration(jitter*float64(delay)/2)
}
