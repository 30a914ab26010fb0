package health

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// Config is what the shell needs. Events, Journal and Metrics may be nil; the
// zero Settings mean Defaults.
type Config struct {
	Client kubernetes.Interface
	// Leases reads the nodes' leases; nil means Client.
	Leases    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Events    record.EventRecorder // component node-controller
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Settings  Settings
	// Board, if set, tells how nodes stand while Run runs.
	Board *Board
}

// marking, following and silencing write at the same time; each node has one
// writer of each kind at most. Marking has the most: a thousand nodes may die at
// once, and their conditions come before all else. Pods have writers of their
// own: thirty times as many as nodes, no taint may wait behind them.
const marking, following, silencing = 16, 6, 6

type shell struct {
	Config
	// urgent are nodes whose conditions may have to become Unknown; rest are
	// nodes whose taints and labels may have to follow; unready are nodes whose
	// pods may have to.
	urgent, rest, unready *controller.Queue
	pods, nodes           cache.Indexer
	fresh                 fresh
	holding               bool // only the loop touches it
	wake                  chan struct{}
	stale                 chan struct{}
	meter                 *meter

	// mu guards monitor. No API call is made while it is held.
	mu      sync.Mutex
	monitor *Monitor
}

func newQueue(name string) *controller.Queue {
	return controller.NewMeasuredQueue(name, controller.Backoff{First: 20 * time.Millisecond, Most: 10 * time.Second})
}

// Run keeps conditions, taints and pods of every node in step with what is
// known of it, until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Settings == (Settings{}) {
		cfg.Settings = Defaults()
	}
	if err := cfg.Settings.Validate(); err != nil {
		return err
	}
	if cfg.Leases == nil {
		cfg.Leases = cfg.Client
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	s := &shell{Config: cfg, monitor: NewMonitor(cfg.Settings), wake: make(chan struct{}, 1), stale: make(chan struct{}, 1),
		urgent: newQueue("node-health"), rest: newQueue("node-health-rest"), unready: newQueue("node-health-pods")}
	var err error
	if s.meter, err = newMeter(cfg.Metrics); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	remove, err := s.watch(ctx)
	defer remove()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	listed := make(chan struct{})
	wg.Go(func() { s.watchLeases(ctx, sync.OnceFunc(func() { close(listed) })) })
	select {
	case <-listed:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.observe(Event{Kind: Synced})
	env := controller.Env{Name: "node-lifecycle-controller", Log: s.Log}
	work := func(queue *controller.Queue, workers int, do func(context.Context, *v1.Node, Verdict) error) {
		wg.Go(func() {
			_ = env.Run(ctx, queue, workers, func(ctx context.Context, node string) (time.Duration, error) {
				return 0,
					s.write(ctx, node, do)
			})
		})
	}
	work(s.urgent, marking, s.mark)
	work(s.rest, following, s.follow)
	work(s.unready, silencing, s.markPods)
	if cfg.Board != nil {
		explain := s.explain
		cfg.Board.now.Store(&explain)
		defer cfg.Board.now.Store(nil)
		cfg.Board.numbers.Store(&numbers{s.zones, s.heard})
		defer cfg.Board.numbers.Store(nil)
	}
	s.loop(ctx, &wg)
	return ctx.Err()
}

func (s *shell) explain(node string) (journal.Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.monitor.Explain(node, time.Now())
}

func (s *shell) zones() []ZoneView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.monitor.Zones(time.Now())
}

func (s *shell) heard(node string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.monitor.Heard(node)
}

func (s *shell) verdict(node string) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.monitor.Verdict(node)
}

func (s *shell) observe(e Event) {
	s.mu.Lock()
	more := s.monitor.Observe(time.Now(), e)
	s.mu.Unlock()
	if more {
		signal(s.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// loop lets the Monitor decide at each event and each deadline.
func (s *shell) loop(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.mu.Lock()
		now := time.Now()
		decisions := s.monitor.Advance(now)
		next := s.monitor.Next()
		var zones []ZoneView
		if len(decisions) > 0 {
			zones = s.monitor.Zones(now)
		}
		s.mu.Unlock()
		// Carrying out comes before telling: a thousand sentences take time.
		for _, d := range decisions {
			s.act(ctx, d, wg)
		}
		for _, d := range decisions {
			s.record(now, d)
		}
		if len(decisions) > 0 {
			s.meter.all.Observe(time.Since(now).Seconds())
			s.meter.zones(zones)
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = max(0, time.Until(next))
		}
		timer.Reset(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// act hands a decision to those who carry it out.
func (s *shell) act(ctx context.Context, d Decision, wg *sync.WaitGroup) {
	switch d.Kind {
	case Confirm:
		wg.Go(func() { s.confirm(ctx) })
	case StaleWatch:
		s.meter.stale.Inc()
		signal(s.stale)
	case Hold:
		s.holding = true
		s.meter.holding.Set(1)
	case Release:
		s.holding = false
		s.meter.holding.Set(0)
		signal(s.stale) // the watch of leases waits for its next try, up to a minute
	case MarkUnknown:
		s.urgent.Add(d.Node)
	case MarkPods:
		s.unready.Add(d.Node)
	case HeardAgain, Taint, Untaint:
		s.rest.Add(d.Node)
	}
}

// record writes a decision to the journal, the log and the events.
func (s *shell) record(now time.Time, d Decision) {
	if d.Kind == Confirm && (s.holding || d.Cause.Expired == 0) {
		return // that the API is asked again and again goes without saying
	}
	if d.AtStart {
		return
	}
	ref := journal.Ref{Kind: "Node", Name: d.Node, UID: d.UID}
	if d.Node == "" {
		ref = zoneRef(d)
	}
	because := d.Because()
	s.Journal.Append(journal.Record{Time: now, Part: "health", Object: ref, Decision: d.Text(), Because: because})
	level := slog.LevelInfo
	switch d.Kind {
	case Hold, StaleWatch, Suspend:
		level = slog.LevelWarn
		s.event(leasesRef, v1.EventTypeWarning, reasons[d.Kind], fmt.Sprintf("Node health %s", sentence(d, because)))
	case Release, Resume:
		s.event(leasesRef, v1.EventTypeNormal, reasons[d.Kind], fmt.Sprintf("Node health %s", sentence(d, because)))
	}
	if s.Log.Enabled(context.Background(), level) {
		s.Log.Log(context.Background(), level, d.Text(), "node", d.Node, "because", because)
	}
}

// leasesRef is the object of events about all nodes: the namespace of their
// leases.
var leasesRef = &v1.ObjectReference{Kind: "Namespace", APIVersion: "v1", Name: v1.NamespaceNodeLease}

// reasons are those of the events about all nodes.
var reasons = map[Kind]string{
	Hold: "NodeHealthHeld", Release: "NodeHealthReleased", StaleWatch: "NodeLeaseWatchStale",
	Suspend: "NodeEvictionSuspended", Resume: "NodeEvictionResumed",
}

func sentence(d Decision, because []journal.Fact) string {
	out := d.Text()
	for _, f := range because {
		out += "; " + f.Name + ": " + f.Value
	}
	return out
}
