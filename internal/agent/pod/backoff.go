package pod

import (
	"time"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// Crash-loop back-off, as clients of the API see it: the first restart comes
// at once, the second 10 s after the end, then doubling.
const (
	crashInitial = 10 * time.Second
	crashLimit   = 5 * time.Minute
	// crashReset: a container that ended this long after its last restart has
	// done well and starts over.
	crashReset = 10 * time.Minute
)

// Backoff is one container's crash-loop entry. Key is what the definition was:
// another image or other resources start afresh.
type Backoff struct {
	Delay time.Duration
	At    time.Time
	Key   string
}

// backoffFor returns the entry that counts for an ended instance: the one
// remembered, or, for an agent that has just been restarted, the one that the
// instance's restart count tells of. ok is false where there is none.
func backoffFor(have map[string]Backoff, c *runtime.Container, key string, limit time.Duration) (Backoff, bool) {
	b, known := have[c.Name]
	switch {
	case known && b.Key == key:
	case known || c.Attempt == 0:
		return Backoff{}, false
	default:
		b = Backoff{Delay: crashInitial, At: c.CreatedAt, Key: key}
		for n := uint32(1); n < c.Attempt && b.Delay < limit; n++ {
			b.Delay *= 2
		}
		b.Delay = min(b.Delay, limit)
	}
	if c.FinishedAt.Sub(b.At) > crashReset {
		return Backoff{}, false
	}
	return b, true
}

// restartAt tells when an ended instance may be started again and the entry
// that doing so leaves behind.
func restartAt(have map[string]Backoff, c *runtime.Container, key string, limit time.Duration, now time.Time) (time.Time, Backoff) {
	if limit <= 0 {
		limit = crashLimit
	}
	first := min(crashInitial, limit)
	b, ok := backoffFor(have, c, key, limit)
	if !ok {
		return now, Backoff{Delay: first, At: now, Key: key}
	}
	at := c.FinishedAt.Add(b.Delay)
	if latest := now.Add(b.Delay); at.After(latest) {
		at = latest // the clock went back
	}
	return at, Backoff{Delay: min(2*b.Delay, limit), At: now, Key: key}
}
