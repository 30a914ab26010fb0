package snapshot

import (
	"fmt"
	"time"
)

const (
	// firstRetry and the interval bound the pauses between failed attempts.
	firstRetry = time.Minute
	// jitterShare of the interval spreads clusters that started together.
	jitterShare = 10
	// soonest is how long after a start the first snapshot waits.
	soonest = 30 * time.Second
)

// Progress is how a schedule stands.
type Progress struct {
	Every time.Duration `json:"every"`
	Dir   string        `json:"dir"`
	// Started is when the schedule began.
	Started time.Time `json:"started"`
	// Last is the last snapshot that was made; Took how long it took.
	Last     time.Time     `json:"last,omitzero"`
	LastFile string        `json:"lastFile,omitempty"`
	Took     time.Duration `json:"took,omitempty"`
	// Failures is how many attempts failed since, Error what the last one said.
	Failures int       `json:"failures,omitempty"`
	Failed   time.Time `json:"failed,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// Next is when the next attempt begins. jitter is in [0,1).
func (p *Progress) Next(jitter float64) time.Time {
	spread := time.Duration(jitter * float64(p.Every/jitterShare))
	if p.Failures > 0 {
		pause := firstRetry
		for i := 1; i < p.Failures && pause < p.Every; i++ {
			pause *= 2
		}
		pause = min(pause, p.Every)
		return p.Failed.Add(pause + time.Duration(jitter*float64(pause/jitterShare)))
	}
	begin := p.Started.Add(min(soonest, p.Every/jitterShare))
	if next := p.Last.Add(p.Every); !p.Last.IsZero() && next.After(begin) {
		begin = next
	}
	return begin.Add(spread)
}

// Overdue says whether a snapshot should have been made by now, all jitter and
// one interval of attempts past.
func (p *Progress) Overdue(now time.Time) bool {
	since := p.Started
	if p.Last.After(since) {
		since = p.Last
	}
	return now.Sub(since) > 2*p.Every
}

// Line is what `berth status` says; ok is false where somebody must look.
func (p *Progress) Line(now time.Time) (line string, ok bool) {
	last := "none made yet"
	if !p.Last.IsZero() {
		last = fmt.Sprintf("last %s ago (%s)", now.Sub(p.Last).Round(time.Second), p.LastFile)
	}
	line = fmt.Sprintf("every %s to %s, %s", p.Every, p.Dir, last)
	if p.Failures > 0 {
		line += fmt.Sprintf(", failed %d times since, next attempt by itself: %s", p.Failures, p.Error)
	}
	if p.Overdue(now) {
		line += ", OVERDUE"
	}
	return line, p.Failures == 0 && !p.Overdue(now)
}
