package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A small heap under heavy use is collected all the time: at GCPercent, a
// server that takes hundreds of writes a second spends a quarter of its
// processor time on that. While it is so busy it may hold more memory.
const (
	// busyCycle is an interval between collections that makes a process busy
	// when busyCycles in turn are shorter; calmCycle is one that ends it.
	busyCycle  = 250 * time.Millisecond
	busyCycles = 8
	calmCycle  = 2 * time.Second
	// busyGrowth is what a busy heap may grow by between collections, busyMax the
	// growth in percent that is never exceeded.
	busyGrowth = 192 << 20
	busyMax    = 300
	// idleAfter is how long a busy process may be without a collection until it
	// counts as calm.
	idleAfter = 10 * time.Second
)

// pacer decides how much the heap may grow before the next collection. It is
// pure.
type pacer struct {
	last  time.Time
	quick int // collections in turn that came soon after the one before
}

// cycle takes in that a collection ended with so many live bytes, and returns
// the heap's growth to allow, in percent.
func (p *pacer) cycle(now time.Time, live uint64) (percent int) {
	since := now.Sub(p.last)
	p.last = now
	switch {
	case since >= calmCycle:
		p.quick = 0
	case since < busyCycle:
		p.quick = min(p.quick+1, busyCycles)
	case p.quick < busyCycles:
		p.quick = 0
	}
	if !p.busy() || live == 0 {
		return GCPercent
	}
	return max(GCPercent, min(busyMax, int(busyGrowth*100/live)))
}

func (p *pacer) busy() bool { return p.quick >= busyCycles }

// calm takes in that nothing happens any more.
func (p *pacer) calm() { p.quick = 0 }

// sentinel is garbage that comes back: its finalizer runs after every
// collection, so that no timer is needed.
type sentinel struct {
	cycles chan<- struct{}
	over   *atomic.Bool
}

func (s *sentinel) collected() {
	select {
	case s.cycles <- struct{}{}:
	default:
	}
	if !s.over.Load() {
		runtime.SetFinalizer(s, (*sentinel).collected)
	}
}

// TuneGC lets the heap of a process that serves an API grow more while there is
// much to do. It begins when ReleasePeriodically has released what the start needed, and
// returns when ctx ends.
func TuneGC(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(releaseAfter[len(releaseAfter)-1]):
		tuneGC(ctx)
	}
}

// tuneGC adjusts the heap's growth to what the process does until ctx ends.
func tuneGC(ctx context.Context) {
	cycles, over := make(chan struct{}, 1), &atomic.Bool{}
	defer over.Store(true)
	runtime.SetFinalizer(&sentinel{cycles, over}, (*sentinel).collected)
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	p, percent := pacer{last: time.Now()}, GCPercent
	idle := time.NewTimer(idleAfter)
	idle.Stop()
	defer idle.Stop()
	for {
		want := percent
		select {
		case <-ctx.Done():
			return
		case <-cycles:
			metrics.Read(sample)
			want = p.cycle(time.Now(), sample[0].Value.Uint64())
		case <-idle.C:
			p.calm()
			want = GCPercent
			debug.SetGCPercent(GCPercent)
			debug.FreeOSMemory()
		}
		if want != percent {
			percent = want
			debug.SetGCPercent(percent)
		}
		if p.busy() {
			idle.Reset(idleAfter)
		} else {
			idle.Stop()
		}
	}
}
