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

// backoff is one container's crash-loop entry. Key is what the definition was:
// another image or other resources start afresh.
type backoff struct {
	Delay time.Duration
	At    time.Time
	Key   string
}

// restartAt tells when an ended instance may be started again and the entry
// that doing so leaves behind.
func (p *planner) restartAt(m *containerState, c *runtime.Container) (time.Time, backoff) {
	limit := p.obs.Node.CrashLimit
	if limit <= 0 {
		limit = crashLimit
	}
	key := backoffKey(p.pod, m.c)
	fresh := backoff{Delay: min(crashInitial, limit), At: p.now, Key: key}
	b, known := p.obs.Backoff[m.c.Name]
	switch {
	case known && b.Key != key, !known && c.Attempt == 0:
		return p.now, fresh
	case !known:
		b = rebuilt(c, p.previous(c), limit)
	}
	if c.FinishedAt.Sub(b.At) > crashReset {
		return p.now, fresh
	}
	next := backoff{Delay: min(2*b.Delay, limit), At: p.now, Key: key}
	if !known && p.obs.endedUnseen(p.idOf(c), c) {
		// Anyone who killed the agent killed it too, most likely: an agent that
		// remembered would not have made it wait.
		next.Delay = b.Delay
		return p.now, next
	}
	if c.FinishedAt.After(p.now.Add(b.Delay)) {
		return p.now, next // the clock went back: no one knows how long it waited
	}
	return c.FinishedAt.Add(b.Delay), next
}

// rebuilt is the entry of an agent that has just been started, read from what
// the runtime kept: the pause before this instance is the delay that held then,
// and twice that holds now. older is the instance before, if it is still there.
func rebuilt(c, older *runtime.Container, limit time.Duration) backoff {
	b := backoff{Delay: min(crashInitial, limit), At: c.CreatedAt}
	if !exited(older) {
		return b
	}
	pause := c.CreatedAt.Sub(older.FinishedAt)
	for n := uint32(1); n < c.Attempt && b.Delay <= pause && b.Delay < limit; n++ {
		b.Delay = min(2*b.Delay, limit)
	}
	return b
}
