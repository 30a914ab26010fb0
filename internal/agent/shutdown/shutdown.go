// Package shutdown ends pods in order when the host goes down, within the
// time the system gives.
//
// plan.go decides which pods end when (pure); this file performs; logind.go
// delays the system's shutdown meanwhile and tells when one begins.
package shutdown

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// The status of a pod that ends because its host shuts down.
const (
	Reason  = "Terminated"
	Message = "Pod was terminated in response to imminent node shutdown."
)

// System delays the host's shutdown and tells when one begins.
type System interface {
	// Delay makes sure that the system waits for at least need before it goes
	// down, from now on until release is called. It returns what the system
	// grants, which may be less.
	Delay(ctx context.Context, need time.Duration) (granted time.Duration, release func(), err error)
	// Watch sends true when a shutdown begins and false when it is called off,
	// until the context ends; then, or if the system is lost, it closes.
	Watch(ctx context.Context) (<-chan bool, error)
}

// statusSetter is where the node shows that it goes down.
type statusSetter interface{ SetShuttingDown(bool) }

// Config is all the role needs; Journal and Metrics may be nil.
type Config struct {
	Log      *slog.Logger
	NodeName string
	Kubelet  *kubeletv1beta1.KubeletConfiguration
	System   System
	Status   statusSetter
	// Pods lists the pods of the node with their current status.
	Pods func() []*v1.Pod
	// Kill ends a pod within the grace; the channel is closed when nothing of
	// it is left, volumes included, and the API knows how it ended. Nil if there
	// is no such pod.
	Kill    func(pod *v1.Pod, grace time.Duration) <-chan struct{}
	Events  record.EventRecorder
	Journal journal.Sink
	Metrics prometheus.Registerer
}

// Manager ends pods when the host goes down.
type Manager struct {
	cfg    Config
	groups []group
	down   atomic.Bool
	start  prometheus.Gauge
	end    prometheus.Gauge
}

// New returns a Manager, or nil if graceful shutdown is not configured.
func New(cfg Config) (*Manager, error) {
	start, end, err := gauges(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	groups := groups(cfg.Kubelet)
	if len(groups) == 0 {
		return nil, nil
	}
	if cfg.Log == nil || cfg.NodeName == "" || cfg.System == nil || cfg.Status == nil || cfg.Pods == nil || cfg.Kill == nil ||
		cfg.Events == nil {
		return nil, errors.New("configuring graceful shutdown: Log, NodeName, System, Board, Pods, Kill and Events are required")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	return &Manager{cfg: cfg, groups: groups, start: start, end: end}, nil
}

// gauges are registered whether or not there will be a graceful shutdown: a
// node without one shows 0.
func gauges(registry prometheus.Registerer) (start, end prometheus.Gauge, err error) {
	start = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_start_time_seconds",
		Help: "Last graceful shutdown start time since unix epoch in seconds"})
	end = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_end_time_seconds",
		Help: "Last graceful shutdown end time since unix epoch in seconds"})
	if registry == nil {
		return start, end, nil
	}
	if err := errors.Join(registry.Register(start), registry.Register(end)); err != nil {
		return nil, nil, fmt.Errorf("registering shutdown metrics: %w", err)
	}
	return start, end, nil
}

// Admit refuses new pods while the host goes down.
func (m *Manager) Admit(*v1.Pod) (reason, message string, ok bool) {
	if m.down.Load() {
		return "NodeShutdown", "Pod was rejected as the node is shutting down.", false
	}
	return "", "", true
}

// watchRetry are the pauses before the connection to the system is made again.
var watchRetry = controller.Backoff{First: time.Second, Most: 30 * time.Second}

// Run holds the delay and waits for a shutdown until the context ends. The
// connection to the system is made again when it is lost.
func (m *Manager) Run(ctx context.Context) error {
	warned := false
	retry := controller.Retry{Backoff: watchRetry}
	for ctx.Err() == nil {
		began := time.Now()
		err := m.watch(ctx)
		if time.Since(began) > watchRetry.Most {
			retry.Succeeded() // it was there for a while
		}
		if err != nil && ctx.Err() == nil && !warned {
			m.cfg.Log.Warn("graceful shutdown is not possible now; trying on", "err", err)
			warned = true
		}
		controller.Sleep(ctx, retry.Failed())
	}
	return nil
}

func (m *Manager) watch(ctx context.Context) error {
	need := total(m.groups)
	granted, release, err := m.cfg.System.Delay(ctx, need)
	if err != nil {
		return err
	}
	defer func() { release() }()
	if granted < need {
		m.cfg.Log.Warn("the system grants less time than shutdown grace periods need", "granted", granted, "needed", need)
	}
	told, err := m.cfg.System.Watch(ctx)
	if err != nil {
		return err
	}
	var ending context.CancelFunc
	var done chan struct{}
	defer func() {
		if ending != nil {
			ending()
			<-done
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-done:
			ending()
			ending, done = nil, nil
			release() // the system may go down now
			release = func() {}
		case begins, ok := <-told:
			switch {
			case !ok:
				return errors.New("the connection to the system was lost")
			case begins && ending == nil:
				m.announce("Shutdown manager detected shutdown event", true)
				working, cancel := context.WithCancel(ctx)
				ending = cancel
				done = make(chan struct{})
				go func(done chan struct{}) {
					defer close(done)
					m.endPods(working)
				}(done)
			case !begins:
				m.announce("Shutdown manager detected shutdown cancellation", false)
				return nil // begin again, with a new delay
			}
		}
	}
}

func (m *Manager) announce(text string, down bool) {
	m.down.Store(down)
	m.cfg.Status.SetShuttingDown(down)
	m.cfg.Events.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: m.cfg.NodeName, UID: types.UID(m.cfg.NodeName)},
		v1.EventTypeNormal, "Shutdown", text)
	m.note(text)
}

// endPods ends group after group, the least important first. A group that does
// not end within its period does not hold up the next.
func (m *Manager) endPods(ctx context.Context) {
	m.start.SetToCurrentTime()
	for _, stage := range plan(m.groups, m.cfg.Pods()) {
		var wg sync.WaitGroup
		waiting, cancel := context.WithTimeout(ctx, stage.Period)
		for _, victim := range stage.Victims {
			over := m.cfg.Kill(victim.Pod, victim.Grace)
			if over == nil {
				continue
			}
			wg.Go(func() {
				select {
				case <-over:
				case <-waiting.Done():
					m.cfg.Log.Warn("a pod did not end in time for the shutdown", "namespace", victim.Pod.Namespace, "pod", victim.Pod.Name)
				}
			})
		}
		wg.Wait()
		cancel()
		if ctx.Err() != nil {
			return
		}
		m.note("ended pods for the shutdown", journal.Fact{Name: "priority", Value: fmt.Sprint(stage.Priority)},
			journal.Fact{Name: "pods", Value: fmt.Sprint(len(stage.Victims))})
	}
	m.end.SetToCurrentTime()
}

func (m *Manager) note(decision string, because ...journal.Fact) {
	m.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "agent", Object: journal.Ref{Kind: "Node", Name: m.cfg.NodeName},
		Decision: decision, Because: because})
}
