package metrics

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How often agents are asked, and until when.
const (
	// Resolution is the time between two scrapes of a node while someone asks.
	Resolution = 15 * time.Second
	// quick is the time between the first two scrapes, so that the first
	// question gets an answer soon.
	quick = time.Second
	// idle is how long after the last question the agents are left alone. An
	// autoscaler asks more often and so keeps the feed going.
	idle = time.Minute
	// scrapeTimeout bounds one scrape of one agent.
	scrapeTimeout = 10 * time.Second
	// parallel bounds how many agents are asked at the same time.
	parallel = 32
)

// Feed holds the usage of every node while someone asks for it. The zero
// value of its optional fields is upstream's behaviour.
type Feed struct {
	// Nodes lists the names of all nodes, Ask returns what a node's agent
	// measures now. Both are required, and may be called at the same time.
	Nodes func() []string
	Ask   func(ctx context.Context, node string) (Scrape, error)
	Log   *slog.Logger

	mu     sync.Mutex
	states map[string]state
	asked  time.Time
	// first is closed when every node was asked twice; nil while the feed
	// rests.
	first chan struct{}
	start chan struct{}
	once  sync.Once
}

func (f *Feed) init() {
	f.once.Do(func() { f.start, f.states = make(chan struct{}, 1), map[string]state{} })
}

// States returns what is known of the nodes, by name; the map is the caller's.
// The first call after a rest waits for two quick scrapes, or the end of ctx.
func (f *Feed) States(ctx context.Context) map[string]state {
	f.init()
	f.mu.Lock()
	f.asked = time.Now()
	if f.first == nil {
		f.first = make(chan struct{})
		f.start <- struct{}{}
	}
	first := f.first
	f.mu.Unlock()
	select {
	case <-first:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.states)
}

// Run asks the agents, while someone asks, until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	f.init()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.start:
		}
		if err := f.follow(ctx); err != nil {
			return err
		}
	}
}

// follow scrapes until no one has asked for a while.
func (f *Feed) follow(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if f.rest(round) {
			return nil
		}
		f.scrape(ctx)
		next := quick
		if round > 0 {
			next = Resolution - time.Second/2 + rand.N(time.Second)
		}
		if round == 1 {
			f.mu.Lock()
			close(f.first)
			f.mu.Unlock()
		}
		timer.Reset(next)
	}
}

// rest ends the feed when no one asks any more: what it knew would be old when
// it is asked again.
func (f *Feed) rest(round int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if round < 2 || time.Since(f.asked) < idle {
		return false
	}
	f.first, f.states = nil, map[string]state{}
	return true
}

// scrape asks every agent once. A node whose agent does not answer keeps
// nothing: old usage is no usage.
func (f *Feed) scrape(ctx context.Context) {
	names := f.Nodes()
	var group errgroup.Group
	group.SetLimit(parallel)
	var mu sync.Mutex
	answers := make(map[string]Scrape, len(names))
	for _, name := range names {
		group.Go(func() error {
			one, cancel := context.WithTimeout(ctx, scrapeTimeout)
			defer cancel()
			s, err := f.Ask(one, name)
			if err != nil {
				if ctx.Err() == nil {
					f.Log.Warn("asking an agent for its resource metrics", "node", name, "err", err)
				}
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			answers[name] = s
			return nil
		})
	}
	group.Wait() //nolint:errcheck // every failure was told above
	f.mu.Lock()
	defer f.mu.Unlock()
	next := make(map[string]state, len(answers))
	for name, s := range answers {
		next[name] = f.states[name].Next(s, Resolution)
	}
	f.states = next
}

func metav1Time(t time.Time) metav1.Time { return metav1.NewTime(t) }
