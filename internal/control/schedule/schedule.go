// Package schedule binds pods to nodes: the shell around package place.
//
// One loop owns the snapshot and the backlog, so neither needs a lock. API
// calls (binds, conditions, preemptions) run beside it and report back.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// DefaultName is the scheduler name pods get when they name none.
const DefaultName = "default-scheduler"

// Config is what the scheduler needs. Client, Informers and Log are required.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	// Metrics may be nil.
	Metrics prometheus.Registerer
	// Journal defaults to one that forgets.
	Journal journal.Sink
	// Name is the scheduler name whose pods are placed, and the component of
	// its events; empty means DefaultName.
	Name string
	// InFlight is how many API calls may run beside the loop; 0 means 64.
	InFlight int
	// VolumeTimeout is how long a placed pod may wait for its volumes to be
	// bound before it is placed again; 0 means 10 minutes.
	VolumeTimeout time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Client == nil || c.Informers == nil || c.Log == nil {
		return c, fmt.Errorf("scheduler: Client, Informers and Log must be set")
	}
	if c.Journal == nil {
		c.Journal = journal.Discard
	}
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.InFlight == 0 {
		c.InFlight = 64
	}
	if c.VolumeTimeout == 0 {
		c.VolumeTimeout = 10 * time.Minute
	}
	return c, nil
}

// Controller declares the scheduler, which acts as upstream's.
func Controller(cfg Config) controller.Controller {
	return controller.Controller{Name: "kube-scheduler", User: user.KubeScheduler,
		Watches: "pods nodes namespaces and what pods of a kind, volumes and devices are",
		Reads:   "get resourceclaims.resource.k8s.io",
		Writes: "create pods/binding\ndelete pods\npatch pods/status persistentvolumes persistentvolumeclaims\n" +
			"patch resourceclaims.resource.k8s.io resourceclaims.resource.k8s.io/status resourceclaims.resource.k8s.io/binding\n" +
			"create,patch events",
		Run: func(ctx context.Context, e controller.Env) error {
			cfg.Client = e.Client
			return run(ctx, cfg)
		}}
}

// run places pods until the context ends.
func run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the recorder and the handlers
	l := &loop{
		Config: cfg, snap: place.NewSnapshot(), backlog: newBacklog(),
		recorder: kube.Events(ctx, cfg.Client)(cfg.Name),
		flights:  map[types.UID]*flight{}, wake: make(chan struct{}, 1),
		slots: make(chan struct{}, cfg.InFlight), metrics: metrics,
	}
	defer l.calls.Wait()
	if err := l.watch(ctx); err != nil {
		return err
	}
	l.run(ctx)
	return nil
}

// loop is the scheduler's single owner of state.
type loop struct {
	Config
	snap     *place.Snapshot
	backlog  *backlog
	recorder record.EventRecorder
	metrics  *metrics
	// flights are the pods that were placed and are not yet seen bound.
	flights map[types.UID]*flight

	mu    sync.Mutex
	inbox []func() // events, run by the loop in order
	wake  chan struct{}
	slots chan struct{}
	calls sync.WaitGroup
}

// flight is one placed pod on its way to being bound.
type flight struct {
	*waiting
	node    string
	volumes place.VolumePlan
	devices place.DevicePlan
	// pending says that it still waits for its volumes until the deadline.
	pending  bool
	deadline time.Time
	// handed are the claims seen with this node selected: a provisioner takes
	// the selection away when it cannot make the volume there.
	handed map[types.NamespacedName]bool
}

// post hands an event to the loop; it never blocks.
func (l *loop) post(f func()) {
	l.mu.Lock()
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loop) drain() {
	l.mu.Lock()
	batch := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range batch {
		f()
	}
}

func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.drain()
		if w := l.backlog.pop(time.Now()); w != nil {
			l.place(ctx, w)
			continue
		}
		l.expireFlights(ctx)
		l.metrics.pending.Set(float64(len(l.backlog.items)))
		timer.Reset(l.sleep())
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// sleep returns the time to the next deadline, an hour when there is none.
func (l *loop) sleep() time.Duration {
	d := time.Hour
	if at, ok := l.backlog.next(); ok {
		d = min(d, time.Until(at))
	}
	for _, f := range l.flights {
		if f.pending {
			d = min(d, time.Until(f.deadline))
		}
	}
	return max(d, 0)
}

// place decides for one pod and starts what follows from it.
func (l *loop) place(ctx context.Context, w *waiting) {
	start := time.Now()
	d := l.snap.Place(w.pod, place.Options{})
	l.metrics.duration.Observe(time.Since(start).Seconds())
	pod := w.pod.Obj
	rec := journal.Record{Time: start, Part: "scheduler", Because: d.Because(),
		Object: journal.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}}
	if d.Node == "" {
		rec.Decision = "found no node"
		l.Journal.Append(rec)
		l.refuse(ctx, w, &d)
		return
	}
	rec.Decision = "placed on " + d.Node
	l.Journal.Append(rec)
	l.backlog.remove(pod.UID)
	f := &flight{waiting: w, node: d.Node, volumes: d.Volumes, devices: d.Devices}
	l.flights[pod.UID] = f
	l.snap.Assume(w.pod, d.Node)
	l.snap.AssumeVolumes(d.Volumes)
	l.snap.AssumeDevices(d.Devices)
	if d.Devices.Empty() {
		l.proceed(ctx, f)
		return
	}
	l.claimDevices(ctx, f)
}

// proceed binds a placed pod whose claims name it, or waits for its volumes.
func (l *loop) proceed(ctx context.Context, f *flight) {
	if f.volumes.Empty() {
		l.bind(ctx, f)
		return
	}
	f.pending, f.deadline = true, time.Now().Add(l.VolumeTimeout)
	l.prepareVolumes(ctx, f)
}

// refuse says why, makes room where preemption found a way, and parks the pod.
func (l *loop) refuse(ctx context.Context, w *waiting, d *place.Decision) {
	l.metrics.attempts.WithLabelValues("unschedulable").Inc()
	msg := d.Message()
	pod := w.pod.Obj
	l.recorder.Event(pod, v1.EventTypeWarning, "FailedScheduling", msg)
	nominate := ""
	if d.Preempt != nil {
		nominate = d.Preempt.Node
		l.snap.Nominate(w.pod, nominate)
		l.preempt(ctx, pod, d.Preempt)
	}
	if d.Release != nil {
		l.releaseDevices(ctx, *d.Release)
	}
	l.backlog.failed(w, wakes(pod, d), time.Now())
	l.markUnschedulable(ctx, pod, msg, nominate)
}

// failed takes a placement back and tries again later.
func (l *loop) failed(uid types.UID, why string) {
	f := l.flights[uid]
	if f == nil {
		return // seen bound or deleted meanwhile
	}
	l.landed(f)
	l.snap.RemovePod(uid)
	l.metrics.attempts.WithLabelValues("error").Inc()
	l.Log.Warn("placing a pod failed, will try again", "pod", controller.Key(f.pod.Obj), "node", f.node, "err", why)
	l.backlog.items[uid] = f.waiting
	l.backlog.failed(f.waiting, 0, time.Now())
	l.backlog.happened(podGone, time.Now())
}

// landed forgets a flight and what it was promised.
func (l *loop) landed(f *flight) {
	delete(l.flights, f.pod.Obj.UID)
	l.snap.ForgetVolumes(f.volumes)
	l.snap.ForgetDevices(f.devices)
}

// expireFlights gives up on pods whose volumes were not bound in time.
func (l *loop) expireFlights(ctx context.Context) {
	now := time.Now()
	for uid, f := range l.flights {
		if f.pending && !f.deadline.After(now) {
			l.clearSelectedNode(ctx, f)
			l.failed(uid, fmt.Sprintf("volumes not bound within %s", l.VolumeTimeout))
		}
	}
}

// metrics carry the names operators know from the upstream scheduler where the
// meaning is the same.
type metrics struct {
	attempts *prometheus.CounterVec
	duration prometheus.Histogram
	wait     prometheus.Histogram
	pending  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_schedule_attempts_total",
			Help: "Attempts to place a pod, by result (scheduled, unschedulable, error)."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_scheduling_algorithm_duration_seconds",
			Help: "Time to decide for one pod.", Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10)}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_sli_duration_seconds",
			Help: "Time from seeing a pod to its binding, all attempts included.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 12)}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{Name: "scheduler_pending_pods", Help: "Pods waiting for a node."}),
	}
	var errs [4]error
	m.attempts, errs[0] = kube.Registered(reg, m.attempts)
	m.duration, errs[1] = kube.Registered(reg, m.duration)
	m.wait, errs[2] = kube.Registered(reg, m.wait)
	m.pending, errs[3] = kube.Registered(reg, m.pending)
	return m, errors.Join(errs[:]...)
}
