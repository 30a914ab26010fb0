package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/controller"
)

// Periods of the relist. With a working event stream it is only a net.
const (
	settleAfter = time.Second     // once after the stream opened: gRPC does not say when the runtime really subscribed us
	netPeriod   = 5 * time.Minute // while events flow
	pollPeriod  = time.Second     // while they do not
)

// streamRetry are the pauses before the event stream is opened again.
var streamRetry = controller.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second}

// WatcherConfig configures a Watcher.
type WatcherConfig struct {
	Service Service
	// Notify is called with the pod whose picture changed; it must not block.
	Notify  func(types.UID)
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: no metrics
}

// Watcher keeps a Cache true.
type Watcher struct {
	*cache
	svc     Service
	log     *slog.Logger
	synced  chan struct{}
	once    sync.Once
	trigger chan struct{}

	mu        sync.Mutex
	streaming bool
	noEvents  bool
	turn      chan struct{} // closed when either changes
	lastErr   error

	relists, repairs, events prometheus.Counter
	discards                 prometheus.Counter
	relistTime, relistPause  prometheus.Histogram
	seen                     prometheus.Gauge
}

// NewWatcher makes a watcher; nothing happens until Run.
func NewWatcher(cfg WatcherConfig) *Watcher {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "berth_agent", Subsystem: "runtime", Name: name, Help: help})
	}
	w := &Watcher{
		cache: newCache(cfg.Notify), svc: cfg.Service, log: cfg.Log,
		synced: make(chan struct{}), trigger: make(chan struct{}, 1),
		relists: counter("relists_total", "Full lists of the runtime's sandboxes and containers."),
		repairs: counter("relist_repairs_total", "Differences that a relist found although the event stream was open."),
		events:  counter("events_total", "Events received from the runtime."),
		discards: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_pleg_discard_events",
			Help: "Events of the runtime that nobody could take. There are none: what changed is looked up, not queued."}),
		relistTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pleg_relist_duration_seconds",
			Help: "Seconds that a full list of the runtime took."}),
		relistPause: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pleg_relist_interval_seconds",
			Help: "Seconds between full lists of the runtime.", Buckets: []float64{.1, .5, 1, 2, 5, 10, 30, 60, 120, 300}}),
		seen: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_pleg_last_seen_seconds",
			Help: "Unix time of the last full list of the runtime that succeeded."}),
	}
	if cfg.Metrics != nil {
		for _, m := range []prometheus.Collector{w.relists, w.repairs, w.events, w.discards, w.relistTime, w.relistPause, w.seen} {
			if err := cfg.Metrics.Register(m); err != nil {
				cfg.Log.Warn("registering a runtime metric", "err", err)
			}
		}
	}
	return w
}

// Synced is closed once the first full list was read.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// Healthy returns nil while the runtime answers, else the last error.
func (w *Watcher) Healthy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastErr
}

// Run keeps the cache fed until ctx ends. It survives every error of the
// runtime.
func (w *Watcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { w.stream(ctx) })
	defer wg.Wait()

	var last time.Time
	for settled := false; ctx.Err() == nil; {
		began := time.Now()
		if !last.IsZero() {
			w.relistPause.Observe(began.Sub(last).Seconds())
		}
		last = began
		err := w.Relist(ctx)
		w.relistTime.Observe(time.Since(began).Seconds())
		if err == nil {
			w.seen.SetToCurrentTime()
		}
		w.mu.Lock()
		w.lastErr = err
		wait := pollPeriod
		if w.streaming && err == nil {
			wait = netPeriod
			if !settled {
				wait, settled = settleAfter, true
			}
		} else {
			settled = false
		}
		w.mu.Unlock()
		if err == nil {
			w.once.Do(func() { close(w.synced) })
		} else if ctx.Err() == nil {
			w.log.Warn("listing the runtime's pods", "err", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.trigger:
			settled = false
		}
		timer.Stop()
	}
	return ctx.Err()
}

// stream holds the event stream open until ctx ends or the runtime says that
// it has none.
func (w *Watcher) stream(ctx context.Context) {
	retry := controller.Retry{Backoff: streamRetry}
	for ctx.Err() == nil {
		got := make(chan *runtimeapi.ContainerEventResponse, 64)
		var wg sync.WaitGroup
		wg.Go(func() {
			for e := range got {
				retry.Succeeded()
				w.events.Inc()
				w.Event(e)
			}
		})
		// The client would log the end of each stream as an error of its own.
		err := w.svc.GetContainerEvents(klog.NewContext(ctx, klog.Logger{}), got, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
			w.setStreaming(true)
		})
		close(got)
		wg.Wait()
		w.setStreaming(false)
		if ctx.Err() != nil {
			return
		}
		if IsUnimplemented(err) {
			w.mu.Lock()
			w.noEvents = true
			if w.turn != nil {
				close(w.turn)
				w.turn = nil
			}
			w.mu.Unlock()
			w.log.Info("the runtime has no event stream, listing it each second instead")
			return
		}
		w.log.Warn("the runtime's event stream ended", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry.Failed()):
		}
	}
}

func (w *Watcher) setStreaming(on bool) {
	w.mu.Lock()
	changed := w.streaming != on
	w.streaming = on
	if changed && w.turn != nil {
		close(w.turn)
		w.turn = nil
	}
	w.mu.Unlock()
	if changed {
		select {
		case w.trigger <- struct{}{}:
		default:
		}
	}
}

// Relist reads everything from the runtime once and repairs the cache.
func (w *Watcher) Relist(ctx context.Context) error {
	first := false
	select {
	case <-w.synced:
	default:
		first = true
	}
	w.mu.Lock()
	streaming := w.streaming
	w.mu.Unlock()

	mark := w.mark()
	sandboxes, err := w.svc.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("listing sandboxes: %w", err)
	}
	containers, err := w.svc.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	found := make(map[string]struct{}, len(sandboxes)+len(containers))
	repairs := 0
	var errs []error
	for _, b := range sandboxes {
		found[b.GetId()] = struct{}{}
		ready, _, known := w.stateOf(b.GetId())
		if known && ready == (b.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY) {
			continue
		}
		changed, err := w.RefreshSandbox(ctx, b.GetId())
		if changed {
			repairs++
		}
		errs = append(errs, err)
	}
	for _, n := range containers {
		found[n.GetId()] = struct{}{}
		_, state, known := w.stateOf(n.GetId())
		if known && state == containerState(n.GetState()) {
			continue
		}
		changed, err := w.RefreshContainer(ctx, n.GetPodSandboxId(), n.GetId())
		if changed {
			repairs++
		}
		errs = append(errs, err)
	}
	repairs += w.sweep(found, mark)
	w.relists.Inc()
	if !first && streaming && repairs > 0 {
		w.repairs.Add(float64(repairs))
		w.log.Debug("a relist found a change without an event", "repairs", repairs)
	}
	return errors.Join(errs...)
}

// RefreshSandbox asks for one sandbox's status and takes it in. A sandbox that
// no longer exists is forgotten.
func (w *Watcher) RefreshSandbox(ctx context.Context, id string) (changed bool, err error) {
	r, err := w.svc.PodSandboxStatus(ctx, id, false)
	if IsNotFound(err) {
		return w.Remove(id), nil
	}
	if err != nil {
		return false, fmt.Errorf("reading sandbox %s: %w", id, err)
	}
	return w.SetSandbox(r.GetStatus()), nil
}

// RefreshContainer asks for one container's status and takes it in. sandboxID
// may be empty when the cache knows the container already.
func (w *Watcher) RefreshContainer(ctx context.Context, sandboxID, id string) (changed bool, err error) {
	r, err := w.svc.ContainerStatus(ctx, id, false)
	if IsNotFound(err) {
		return w.Remove(id), nil
	}
	if err != nil {
		return false, fmt.Errorf("reading container %s: %w", id, err)
	}
	return w.SetContainer(sandboxID, r.GetStatus()), nil
}

// Exited returns a channel that is closed once a container is not running, or
// does not exist. It is not closed when ctx ends first.
func (w *Watcher) Exited(ctx context.Context, id string) <-chan struct{} {
	done := make(chan struct{})
	changed := w.Changed()
	go func() {
		for {
			if _, state, known := w.stateOf(id); !known || state != Running {
				close(done)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
				changed = w.Changed()
			}
		}
	}()
	return done
}

// Streaming waits until the event stream is open and the list that covers the
// moment of its opening was read; an error means that ctx ended, or that the
// runtime has no events.
func (w *Watcher) Streaming(ctx context.Context) error {
	for {
		changed := w.flow()
		w.mu.Lock()
		streaming, no := w.streaming, w.noEvents
		w.mu.Unlock()
		switch {
		case no:
			return errors.New("waiting for the runtime's events: it has none")
		case streaming:
			return w.Relist(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// flow returns a channel that is closed when the state of the stream changes.
func (w *Watcher) flow() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.turn == nil {
		w.turn = make(chan struct{})
	}
	return w.turn
}
