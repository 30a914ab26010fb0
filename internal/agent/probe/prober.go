package probe

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/pod"
)

// Config is what a Prober works with.
type Config struct {
	Exec exec
	// Changed tells that a pod's results changed; it must not block.
	Changed func(uid types.UID)
	// Event reports a warning on a pod's container; it must not block.
	Event   func(pod *v1.Pod, container, reason, message string)
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// prober keeps the probes of a node going.
type prober struct {
	cfg      Config
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu       sync.Mutex
	schedule *schedule
	names    map[types.UID]types.NamespacedName // of pods with figures
	wake     chan struct{}
}

// New makes a prober; nothing is probed until Run.
func New(cfg Config) *prober {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &prober{
		cfg: cfg, schedule: newSchedule(cfg.Now()), names: map[types.UID]types.NamespacedName{}, wake: make(chan struct{}, 1),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "prober", Subsystem: "probe", Name: "total", Help: "Probes made, by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "prober", Subsystem: "probe", Name: "duration_seconds", Help: "Time a probe took.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
	if cfg.Metrics != nil {
		for _, c := range []prometheus.Collector{p.total, p.duration} {
			if err := cfg.Metrics.Register(c); err != nil {
				cfg.Log.Warn("registering a probe metric", "err", err)
			}
		}
	}
	return p
}

// Sync replaces the containers watched for a pod.
func (p *prober) Sync(uid types.UID, targets []pod.Target) {
	p.mu.Lock()
	if len(targets) == 0 && p.schedule.pods[uid] == nil {
		p.mu.Unlock()
		return
	}
	if len(targets) > 0 {
		p.names[uid] = types.NamespacedName{Namespace: targets[0].Pod.Namespace, Name: targets[0].Pod.Name}
	}
	p.schedule.Sync(p.cfg.Now(), uid, targets)
	p.mu.Unlock()
	p.trigger()
}

// Forget drops the figures of a pod that is gone.
func (p *prober) Forget(uid types.UID) {
	p.mu.Lock()
	name, known := p.names[uid]
	delete(p.names, uid)
	p.mu.Unlock()
	if known {
		p.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
		p.duration.DeletePartialMatch(prometheus.Labels{"pod": name.Name, "namespace": name.Namespace})
	}
}

// Results returns what is known by container ID.
func (p *prober) Results(uid types.UID) map[string]pod.Probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.schedule.Results(uid)
}

func (p *prober) trigger() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends and returns when every check has ended.
func (p *prober) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := p.cfg.Now()
		p.mu.Lock()
		due := p.schedule.Due(now)
		at, ok := p.schedule.Next()
		p.mu.Unlock()
		for _, c := range due {
			wg.Go(func() { p.check(ctx, c) })
		}
		if ok {
			timer.Reset(max(at.Sub(now), 0))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
	return ctx.Err()
}

// check makes one probe and takes in its result.
func (p *prober) check(ctx context.Context, c check) {
	t := c.Target
	began := p.cfg.Now()
	v, output, err := run(ctx, p.cfg.Exec, subject{c: t.Container, containerID: t.ContainerID, podIP: t.PodIP, probe: c.Probe})
	if ctx.Err() != nil {
		return
	}
	now := p.cfg.Now()
	p.mu.Lock()
	out := p.schedule.Done(now, c.Key, v, output)
	p.mu.Unlock()
	p.trigger()
	if out.UID == "" {
		return // no one asks any more
	}
	p.observe(c, v, now.Sub(began))
	name := [...]string{"Startup", "Liveness", "Readiness"}[c.Key.Type]
	switch {
	case v == Errored:
		p.cfg.Event(t.Pod, t.Container.Name, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %v", name, err))
	case v == Warned:
		p.cfg.Event(t.Pod, t.Container.Name, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", name, output))
	case out.Reported:
		p.cfg.Event(t.Pod, t.Container.Name, "Unhealthy", fmt.Sprintf("%s probe failed: %s", name, output))
	}
	if out.Changed {
		p.cfg.Changed(out.UID)
	}
}

func (p *prober) observe(c check, v verdict, took time.Duration) {
	result := [...]string{"unknown", "successful", "failed", "successful"}[v]
	t := c.Target
	name := map[probeType]string{Startup: "Startup", Liveness: "Liveness", Readiness: "Readiness"}[c.Key.Type]
	p.total.WithLabelValues(name, result, t.Container.Name, t.Pod.Name, t.Pod.Namespace, string(t.Pod.UID)).Inc()
	p.duration.WithLabelValues(name, t.Container.Name, t.Pod.Name, t.Pod.Namespace).Observe(took.Seconds())
}
