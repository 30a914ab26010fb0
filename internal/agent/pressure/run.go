package pressure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// localLimitsEvery is how often pods with limits on local storage are
// measured: writing is no event that anybody tells.
const localLimitsEvery = 10 * time.Second

// rankPause keeps a shortage that no one can be evicted for from measuring all
// pods again and again.
const rankPause = time.Second

// statusSetter is where the node's pressure is shown.
type statusSetter interface{ SetPressure(node.Pressure) }

// Config is all the role needs. Log, NodeName, Kubelet, Board, Pods, Usage,
// Kill, Hurry, Events and Sensor are required.
type Config struct {
	Log      *slog.Logger
	NodeName string
	Kubelet  *kubeletv1beta1.KubeletConfiguration
	Status   statusSetter
	// Pods lists the pods of the node with their current status.
	Pods func() []*v1.Pod
	// Usage measures them. With disk what they store is measured too, which may
	// take a while.
	Usage func(ctx context.Context, pods []*v1.Pod, disk bool) ([]PodUsage, error)
	// Kill ends a pod with the given status; the channel is closed when
	// nothing of it runs any more, nil if there is no such pod.
	Kill func(pod *v1.Pod, eviction Eviction) <-chan struct{}
	// ForceKill ends the grace of a pod that Kill is ending.
	ForceKill func(pod *v1.Pod)
	Events    record.EventRecorder
	Sensor    *Sensor
	// Collector reclaims and collects garbage; nil leaves both out.
	Collector *Collector
	// PodsEvents is the memory.events file of the cgroup of all pods (version
	// 2); empty for none.
	PodsEvents string
	// StallFile is /proc/pressure/memory by default.
	StallFile string
	// KernelLog is /dev/kmsg by default.
	KernelLog string
	Journal   journal.Sink
	Metrics   prometheus.Registerer
}

// Run guards the node until the context ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil || cfg.NodeName == "" || cfg.Kubelet == nil || cfg.Status == nil || cfg.Pods == nil || cfg.Usage == nil ||
		cfg.Kill == nil || cfg.ForceKill == nil || cfg.Events == nil || cfg.Sensor == nil {
		return errors.New("configuring the eviction manager: Log, NodeName, Kubelet, Board, Pods, Usage, Kill, Hurry, Events and Sensor " +
			"are required")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.StallFile == "" {
		cfg.StallFile = "/proc/pressure/memory"
	}
	if cfg.KernelLog == "" {
		cfg.KernelLog = "/dev/kmsg"
	}
	thresholds, err := thresholds(cfg.Kubelet)
	if err != nil {
		return err
	}
	g := &guard{cfg: cfg, thresholds: thresholds, wake: make(chan struct{}, 1), gone: make(chan types.UID, 16), last: map[Signal]reading{}}
	if err := g.registerMetrics(); err != nil {
		return err
	}
	g.core = newCore(settings{
		Thresholds: thresholds, Transition: cfg.Kubelet.EvictionPressureTransitionPeriod.Duration,
		MaxPodGrace:       time.Duration(cfg.Kubelet.EvictionMaxPodGracePeriod) * time.Second,
		DedicatedImageFS:  cfg.Collector != nil && cfg.Collector.Dedicated(),
		IgnoreLocalLimits: cfg.Kubelet.LocalStorageCapacityIsolation != nil && !*cfg.Kubelet.LocalStorageCapacityIsolation,
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := watchStalls(ctx, cfg.StallFile, g.wake); err != nil {
			cfg.Log.Info("the kernel tells no memory stalls; memory is read more often instead", "err", err)
		}
	})
	wg.Go(func() {
		if err := watchKernelLog(ctx, cfg.KernelLog, g.reportVictim); err != nil {
			cfg.Log.Info("the kernel's log cannot be read; there will be no SystemOOM events", "err", err)
		}
	})
	if cfg.PodsEvents != "" {
		wg.Go(func() { watchEvents(ctx, cfg.Log, cfg.PodsEvents, g.wake) })
	}
	if cfg.Collector != nil {
		wg.Go(func() { cfg.Collector.run(ctx) })
	}
	g.run(ctx)
	wg.Wait()
	return nil
}

type guard struct {
	cfg        Config
	thresholds []threshold
	core       *core
	wake       chan struct{}
	gone       chan types.UID
	last       Readings
	lastAt     time.Time
	localAt    time.Time
	rankedAt   time.Time

	measuredAt time.Time // when the pods were measured that the next eviction is decided by

	evictions *prometheus.CounterVec
	statsAge  *prometheus.HistogramVec
}

func (g *guard) registerMetrics() error {
	g.evictions = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_evictions",
		Help: "Cumulative number of pod evictions by eviction signal"}, []string{"eviction_signal"})
	g.statsAge = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_eviction_stats_age_seconds",
		Help: "Seconds from the beginning of measuring pods to the eviction of one by that, by eviction signal."},
		[]string{"eviction_signal"})
	if g.cfg.Metrics == nil {
		return nil
	}
	if err := errors.Join(g.cfg.Metrics.Register(g.evictions), g.cfg.Metrics.Register(g.statsAge)); err != nil {
		return fmt.Errorf("registering eviction metrics: %w", err)
	}
	return nil
}

func (g *guard) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-g.wake:
		case uid := <-g.gone:
			g.core.Remove(uid)
		}
		timer.Reset(g.pass(ctx))
	}
}

// pass reads, decides and performs until nothing more is to be done now, and
// returns how long that may be left alone.
func (g *guard) pass(ctx context.Context) time.Duration {
	readings, err := g.cfg.Sensor.Read()
	if err != nil {
		g.cfg.Log.Warn("reading eviction signals", "err", err)
	}
	now := time.Now()
	wait := nextRead(g.thresholds, readings, g.last, now.Sub(g.lastAt))
	g.last, g.lastAt = readings, now
	var pods, limited []PodUsage
	if !now.Before(g.localAt.Add(localLimitsEvery)) {
		g.localAt = now
		limited = g.measure(ctx, limitsLocalStorage, true)
		now = time.Now()
	}
	// A reclaim and a measurement each lead to one more step; more than a few
	// in a row would be a mistake in the core.
	for range 4 {
		decision := g.core.Step(now, input{Readings: readings, Pods: pods, Limited: limited})
		limited = nil
		g.cfg.Status.SetPressure(decision.Pressure)
		if !decision.Wake.IsZero() {
			wait = min(wait, max(decision.Wake.Sub(now), paceMin))
		}
		if decision.Announce != "" {
			g.cfg.Events.Event(nodeRef(g.cfg.NodeName), v1.EventTypeWarning, "EvictionThresholdMet",
				"Attempting to reclaim "+decision.Announce)
		}
		switch {
		case decision.Reclaim != "":
			g.reclaim(ctx, decision)
			if fresh, err := g.cfg.Sensor.Read(); err == nil {
				readings = fresh
			}
			now = time.Now()
		case decision.NeedPods && now.Before(g.rankedAt.Add(rankPause)):
			return max(wait, rankPause) // there was no one to evict a moment ago
		case decision.NeedPods:
			g.rankedAt = now
			pods = g.measure(ctx, anyPod, needsDisk(decision))
			if pods == nil {
				return wait
			}
			now = time.Now()
		default:
			for _, eviction := range decision.Evict {
				g.evict(ctx, eviction)
			}
			if pod := decision.ForceKill; pod != nil {
				g.note(journal.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
					"its grace ended early: half of the memory kept back is gone", nil)
				g.cfg.ForceKill(pod)
			}
			return wait
		}
		if ctx.Err() != nil {
			return wait
		}
	}
	return wait
}

func anyPod(*v1.Pod) bool { return true }

// needsDisk tells whether the shortage is one of storage.
func needsDisk(decision decision) bool {
	for _, fact := range decision.Because {
		if fact.Name == "signal" {
			return strings.Contains(fact.Value, "fs.")
		}
	}
	return false
}

// measure returns the usage of the pods that run and are wanted; nil if it
// cannot be known.
func (g *guard) measure(ctx context.Context, wanted func(*v1.Pod) bool, disk bool) []PodUsage {
	g.measuredAt = time.Now()
	var active []*v1.Pod
	for _, pod := range g.cfg.Pods() {
		if !podutil.Terminal(pod) && wanted(pod) {
			active = append(active, pod)
		}
	}
	if len(active) == 0 {
		return []PodUsage{}
	}
	usage, err := g.cfg.Usage(ctx, active, disk)
	if err != nil {
		g.cfg.Log.Warn("measuring pods for eviction", "err", err)
		return nil
	}
	return usage
}

func (g *guard) reclaim(ctx context.Context, decision decision) {
	g.note(journal.Ref{Kind: "Node", Name: g.cfg.NodeName}, "reclaimed dead containers and unused images", decision.Because)
	if g.cfg.Collector != nil {
		g.cfg.Collector.Reclaim(ctx, decision.Containers, decision.Images)
	}
	g.core.Reclaimed(decision.Reclaim)
}

func (g *guard) evict(ctx context.Context, eviction Eviction) {
	pod := eviction.Pod
	g.evictions.WithLabelValues(eviction.Signal).Inc()
	g.statsAge.WithLabelValues(eviction.Signal).Observe(time.Since(g.measuredAt).Seconds())
	g.cfg.Log.Warn("evicting a pod", "namespace", pod.Namespace, "pod", pod.Name, "signal", eviction.Signal, "message", eviction.Message)
	g.note(journal.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, "evicted", eviction.Because)
	g.note(journal.Ref{Kind: "Node", Name: g.cfg.NodeName}, "evicted pod "+pod.Namespace+"/"+pod.Name, eviction.Because)
	g.cfg.Events.AnnotatedEventf(pod, eviction.Annotations, v1.EventTypeWarning, "Evicted", "%s", eviction.Message)
	over := g.cfg.Kill(pod, eviction)
	if over == nil {
		g.core.Remove(pod.UID)
		return
	}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-over:
		}
		select {
		case g.gone <- pod.UID:
		case <-ctx.Done():
		}
	}()
}

func (g *guard) note(object journal.Ref, decision string, because []journal.Fact) {
	g.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "agent", Object: object, Decision: decision, Because: because})
}

// nodeRef is the Node as events name it. By convention a node's own events
// carry its name in place of the UID, and that is how they are searched.
func nodeRef(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}
