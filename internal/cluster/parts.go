package cluster

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// part is one role of the cluster: a name users see and the function that is
// the role. Run returns when ctx ends, or with the error that ended it.
type part struct {
	Name string
	Run  func(ctx context.Context) error
}

// PartState is what `berth status` says of a part.
type PartState struct {
	Name     string    `json:"name"`
	Since    time.Time `json:"since"`
	Restarts int       `json:"restarts"`
	// LastError is why it last ended, if it did.
	LastError string `json:"lastError,omitempty"`
}

// crew runs parts and starts those again that end with an error, with a pause
// that grows while they keep ending.
type crew struct {
	log *slog.Logger

	wg     sync.WaitGroup
	mu     sync.Mutex
	states []*PartState
}

// start runs p until ctx ends.
func (c *crew) start(ctx context.Context, p part) {
	state := &PartState{Name: p.Name, Since: time.Now()}
	c.mu.Lock()
	c.states = append(c.states, state)
	c.mu.Unlock()
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		const quick, most = 500 * time.Millisecond, 30 * time.Second
		pause := quick
		for {
			began := time.Now()
			err := p.Run(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = errors.New("it ended without being asked to")
			}
			c.log.Error("a part ended; starting it again", "part", p.Name, "error", err)
			if time.Since(began) > time.Minute {
				pause = quick
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause + rand.N(pause/2)):
			}
			pause = min(pause*2, most)
			c.mu.Lock()
			state.Restarts++
			state.Since = time.Now()
			state.LastError = err.Error()
			c.mu.Unlock()
		}
	}()
}

// wait blocks until every part ended.
func (c *crew) wait() { c.wg.Wait() }

// snapshot copies the states in start order.
func (c *crew) snapshot() []PartState {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]PartState, len(c.states))
	for i, s := range c.states {
		out[i] = *s
	}
	return out
}
