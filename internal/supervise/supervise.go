// Package supervise runs a list of parts: it starts them in order, starts those
// again that end too early, and stops them in reverse order or all at once.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Part is a name that users see and the function that does the work. Run returns
// when its context ends, or with what ended it; without a name its error is passed
// on as it is.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
	// Restart is what happens when Run returns before that.
	Restart Restart
}

// State is how a part stands.
type State struct {
	Name     string    `json:"name"`
	Since    time.Time `json:"since"` // its present start
	Restarts int       `json:"restarts"`
	// LastError is why it last ended, if it did.
	LastError string `json:"lastError,omitempty"`
}

// Order is how a group's parts are stopped.
type Order int

const (
	// Reverse stops the part started last first, and waits for each before the one
	// before it is stopped: for parts that need those before them.
	Reverse Order = iota
	// AtOnce stops all together: for parts that stand side by side, and where all
	// must cease at once, as controllers do when their leadership ends.
	AtOnce
)

// Group runs parts. Make one with New; its methods may be called from several
// goroutines.
type Group struct {
	log    *slog.Logger
	order  Order
	ctx    context.Context // ends when the group is to end
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when all parts were stopped

	mu      sync.Mutex
	closed  bool // no part may start any more
	running []*running
}

// running is a part that was started.
type running struct {
	Part
	stop context.CancelFunc
	over chan struct{} // closed when it will not run again

	mu    sync.Mutex
	state State
}

// New returns a group without parts. When ctx ends, or a part whose policy is
// Never fails, all parts are stopped in that order.
func New(ctx context.Context, log *slog.Logger, order Order) *Group {
	g := &Group{log: log, order: order, ended: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	go g.stopAll()
	return g
}

// Start starts parts in order. A group that ends starts none.
func (g *Group) Start(parts ...Part) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	for _, p := range parts {
		// Its context is not the group's: the order of the end is ours.
		ctx, stop := context.WithCancel(context.WithoutCancel(g.ctx))
		r := &running{Part: p, stop: stop, over: make(chan struct{}), state: State{Name: p.Name, Since: time.Now()}}
		g.running = append(g.running, r)
		go g.keep(ctx, r)
	}
}

// keep runs one part until its context ends or its policy is satisfied.
func (g *Group) keep(ctx context.Context, r *running) {
	defer close(r.over)
	var pause time.Duration
	for {
		began := time.Now()
		err := r.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		var d decision
		d, pause = r.Restart.next(pause, time.Since(began), err, rand.Float64()) //nolint:gosec // jitter
		switch d.do {
		case done:
			return
		case endGroup:
			if r.Name != "" {
				d.err = fmt.Errorf("running %s: %w", r.Name, d.err)
			}
			g.cancel(d.err)
			return
		case again:
		}
		g.log.Error("a part ended; starting it again", "part", r.Name, "err", d.err)
		wait := time.NewTimer(d.after)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		r.mu.Lock()
		r.state.Restarts++
		r.state.Since, r.state.LastError = time.Now(), d.err.Error()
		r.mu.Unlock()
	}
}

// stopAll waits for the group's end and stops the parts.
func (g *Group) stopAll() {
	defer close(g.ended)
	<-g.ctx.Done()
	g.mu.Lock()
	g.closed = true
	parts := g.running
	g.mu.Unlock()
	if g.order == AtOnce {
		for _, r := range parts {
			r.stop()
		}
	}
	for i := len(parts) - 1; i >= 0; i-- {
		parts[i].stop()
		<-parts[i].over
	}
}

// Stop ends the group and waits until all parts ended.
func (g *Group) Stop() {
	g.cancel(nil)
	<-g.ended
}

// Context ends when the group begins to end; its parts' own contexts end later,
// one by one.
func (g *Group) Context() context.Context { return g.ctx }

// Wait blocks until all parts were stopped and returns the failure of the part
// that ended the group; nil if it was asked to end.
func (g *Group) Wait() error {
	<-g.ended
	if cause := context.Cause(g.ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// States are those of the parts, in start order.
func (g *Group) States() []State {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]State, len(g.running))
	for i, r := range g.running {
		r.mu.Lock()
		out[i] = r.state
		r.mu.Unlock()
	}
	return out
}

// Run runs parts until ctx ends, a part whose policy is Never fails, or every
// part is done; then it stops those that still run, all at once, and returns that
// failure.
func Run(ctx context.Context, log *slog.Logger, parts ...Part) error {
	g := New(ctx, log, AtOnce)
	g.Start(parts...)
	go func() {
		for _, r := range g.list() {
			<-r.over
		}
		g.cancel(nil)
	}()
	return g.Wait()
}

func (g *Group) list() []*running {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}
