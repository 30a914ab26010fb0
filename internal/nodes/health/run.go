package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/journal"
)

// Config is what the shell needs. Events, Journal and Metrics may be nil; the
// zero Settings mean Defaults.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Events    record.EventRecorder // component node-controller
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Settings  Settings
}

// workers write nodes at the same time; each node has one writer at most.
const workers = 8

// byNode is the index of pods by the node they are bound to.
const byNode = "health.spec.nodeName"

type shell struct {
	Config
	queue workqueue.TypedRateLimitingInterface[string]
	pods  cache.Indexer
	nodes cache.Indexer
	wake  chan struct{}
	meter *meter

	// mu guards monitor. No API call is made while it is held.
	mu      sync.Mutex
	monitor *Monitor
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
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	s := &shell{Config: cfg, monitor: NewMonitor(cfg.Settings), wake: make(chan struct{}, 1), meter: newMeter(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "node-health"})}
	defer s.queue.ShutDown()
	if cfg.Metrics != nil {
		if err := s.meter.register(cfg.Metrics); err != nil {
			return fmt.Errorf("registering node health metrics: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Of all leases only the nodes' are wanted.
	leases := informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithNamespace(v1.NamespaceNodeLease))
	defer leases.Shutdown()
	defer cancel() // before Shutdown, which waits for the watch to end
	remove, err := s.watch(ctx, leases)
	defer remove()
	if err != nil {
		return err
	}
	s.observe(Event{Kind: Synced})
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, s.queue.ShutDown)
	defer stop()
	defer cancel()
	for range workers {
		wg.Go(func() { s.work(ctx) })
	}
	s.loop(ctx, &wg)
	return ctx.Err()
}

// watch feeds the Monitor and returns once it knows everything there is.
func (s *shell) watch(ctx context.Context, leases informers.SharedInformerFactory) (remove func(), err error) {
	var undo []func()
	remove = func() {
		for _, f := range undo {
			f()
		}
	}
	var synced []cache.InformerSynced
	on := func(inf cache.SharedIndexInformer, what string, h cache.ResourceEventHandlerFuncs) error {
		reg, err := inf.AddEventHandler(h)
		if err != nil {
			return fmt.Errorf("watching %s: %w", what, err)
		}
		undo = append(undo, func() { inf.RemoveEventHandler(reg) }) //nolint:errcheck // the informer may be gone
		synced = append(synced, reg.HasSynced)
		return nil
	}
	podInf := s.Informers.Core().V1().Pods().Informer()
	if _, have := podInf.GetIndexer().GetIndexers()[byNode]; !have {
		if err := podInf.AddIndexers(cache.Indexers{byNode: podNode}); err != nil {
			return remove, fmt.Errorf("indexing pods by node: %w", err)
		}
	}
	nodeInf := s.Informers.Core().V1().Nodes().Informer()
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	return remove, errors.Join(
		on(nodeInf, "nodes", cache.ResourceEventHandlerFuncs{AddFunc: s.seeNode, UpdateFunc: func(_, o any) { s.seeNode(o) }, DeleteFunc: s.loseNode}),
		on(podInf, "pods", cache.ResourceEventHandlerFuncs{AddFunc: s.seePod, UpdateFunc: s.seePodAgain}),
		func() error {
			s.Informers.Start(ctx.Done())
			// Leases of nodes not known yet would be lost: nodes come first.
			if !cache.WaitForCacheSync(ctx.Done(), synced...) {
				return ctx.Err()
			}
			seen := func(o any) { s.seeLease(o) }
			if err := on(leases.Coordination().V1().Leases().Informer(), "node leases", cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }}); err != nil {
				return err
			}
			leases.Start(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), synced...) {
				return ctx.Err()
			}
			return nil
		}())
}

func podNode(o any) ([]string, error) {
	if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}, nil
	}
	return nil, nil
}

func (s *shell) observe(e Event) {
	s.mu.Lock()
	more := s.monitor.Observe(time.Now(), e)
	s.mu.Unlock()
	if more {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *shell) seeNode(o any) {
	if n, ok := o.(*v1.Node); ok {
		s.observe(Event{Kind: NodeSeen, Node: n.Name, View: ViewOf(n)})
		if _, changed := NoSchedule(n, metav1.Time{}); changed {
			s.queue.Add(n.Name)
		}
	}
}

func (s *shell) loseNode(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if n, ok := o.(*v1.Node); ok {
		s.observe(Event{Kind: NodeGone, Node: n.Name})
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "RemovingNode", "Node "+n.Name+" event: Removing Node "+n.Name+" from Controller")
	}
}

func (s *shell) seeLease(o any) {
	if l, ok := o.(*coordination.Lease); ok && l.Spec.RenewTime != nil {
		s.observe(Event{Kind: LeaseSeen, Node: l.Name, Renewed: l.Spec.RenewTime.Time})
	}
}

// seePod catches a ready pod newly bound to a node that is not.
func (s *shell) seePod(o any) {
	p, ok := o.(*v1.Pod)
	if !ok || p.Spec.NodeName == "" || readyAt(p) < 0 {
		return
	}
	s.mu.Lock()
	v := s.monitor.Verdict(p.Spec.NodeName)
	s.mu.Unlock()
	if v.PodsNotReady {
		s.queue.Add(p.Spec.NodeName)
	}
}

// seePodAgain: what a node that still talks says of its pods later is its own
// word and is left alone; a silent node says nothing that could be true.
func (s *shell) seePodAgain(old, o any) {
	was, ok := old.(*v1.Pod)
	p, ok2 := o.(*v1.Pod)
	if !ok || !ok2 || readyAt(p) < 0 {
		return
	}
	s.mu.Lock()
	v := s.monitor.Verdict(p.Spec.NodeName)
	s.mu.Unlock()
	if v.PodsNotReady && (v.Ready == Unknown || was.Spec.NodeName == "") {
		s.queue.Add(p.Spec.NodeName)
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
		zones := s.monitor.Zones(now)
		s.mu.Unlock()
		for _, d := range decisions {
			s.tell(now, d)
			if d.Kind == Confirm {
				wg.Go(func() { s.confirm(ctx) })
			}
		}
		if len(decisions) > 0 {
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

// tell hands a decision to those who carry it out and to those who keep it.
func (s *shell) tell(now time.Time, d Decision) {
	ref := journal.Ref{Kind: "Node", Name: d.Node, UID: d.UID}
	if d.Node == "" {
		ref = journal.Ref{Kind: "Zone", Name: d.Cause.Zone.Name}
	} else {
		s.queue.Add(d.Node)
	}
	s.Journal.Append(journal.Record{Time: now, Part: "health", Object: ref, Decision: d.Text(), Because: d.Because()})
	switch d.Kind {
	case Hold:
		s.Log.Warn(d.Text(), "expired", d.Cause.Expired, "quiet", d.Cause.Quiet, "error", d.Cause.Error)
	case Taint:
		s.meter.evictions.WithLabelValues(d.Cause.Zone.Name).Inc()
		s.Log.Info(d.Text(), "node", d.Node)
	default:
		s.Log.Info(d.Text(), "node", d.Node)
	}
}

// confirm lists the leases from the API itself. What it finds is observed
// first, so a renewal that a dead watch kept back still counts.
func (s *shell) confirm(ctx context.Context) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*s.Settings.Slow+time.Second)
	defer cancel()
	answer := Event{Kind: Confirmed}
	list := metav1.ListOptions{Limit: 5000}
	for {
		leases, err := s.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).List(ctx, list)
		if err != nil {
			answer.Err = fmt.Sprintf("listing node leases: %v", err)
			break
		}
		for i := range leases.Items {
			s.seeLease(&leases.Items[i])
		}
		if list.Continue = leases.Continue; list.Continue == "" {
			break
		}
	}
	answer.Took = time.Since(began)
	s.observe(answer)
}
