package eviction

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what the shell needs. Events and Metrics may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Events    record.EventRecorder // component taint-eviction-controller
	Journal   journal.Sink
	Metrics   prometheus.Registerer
}

type shell struct {
	Config
	queue     kube.Queue[cache.ObjectName]
	pods      cache.Indexer
	nodes     cache.Indexer
	deletions prometheus.Counter
	late      prometheus.Histogram

	mu sync.Mutex
	// marked are pods under a taint that will evict them, with when this
	// process first saw that.
	marked map[cache.ObjectName]time.Time
}

// Run evicts until ctx ends. All it knows is in the API (a taint carries when
// it was added), so a restart moves no deadline.
func Run(ctx context.Context, cfg Config) error {
	s := &shell{Config: cfg, marked: map[cache.ObjectName]time.Time{},
		queue: kube.NewQueue[cache.ObjectName]("taint-eviction", 10*time.Millisecond, 30*time.Second)}
	defer s.queue.ShutDown()
	if s.Journal == nil {
		s.Journal = journal.Discard
	}
	if err := s.measure(); err != nil {
		return err
	}
	podInf, nodeInf := cfg.Informers.Core().V1().Pods().Informer(), cfg.Informers.Core().V1().Nodes().Informer()
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	if err := kube.IndexPodsByNode(podInf); err != nil {
		return err
	}
	pod := func(o any) {
		if key, err := cache.DeletionHandlingObjectToName(o); err == nil {
			s.queue.Add(key)
		}
	}
	node := func(o any) {
		n, ok := o.(*v1.Node)
		if !ok {
			return
		}
		pods, _ := s.pods.ByIndex(kube.ByNode, n.Name)
		for _, p := range pods {
			pod(p)
		}
	}
	podReg, err := podInf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: pod, UpdateFunc: func(_, o any) { pod(o) }, DeleteFunc: pod})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer podInf.RemoveEventHandler(podReg) //nolint:errcheck // the informer may be gone
	nodeReg, err := nodeInf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: node, UpdateFunc: func(old, o any) {
		if a, b := old.(*v1.Node), o.(*v1.Node); a.ResourceVersion == b.ResourceVersion || !sameTaints(a.Spec.Taints, b.Spec.Taints) {
			node(o)
		}
	}})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer nodeInf.RemoveEventHandler(nodeReg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, podReg, nodeReg) {
		return ctx.Err()
	}
	kube.Work(ctx, s.queue, 4, s.Log, "evicting from a tainted node", s.sync)
	return ctx.Err()
}

func (s *shell) measure() (err error) {
	if s.deletions, err = kube.Registered(s.Metrics, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "taint_eviction_controller_pod_deletions_total", Help: "Pods deleted for a NoExecute taint."})); err != nil {
		return err
	}
	s.late, err = kube.Registered(s.Metrics, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "taint_eviction_controller_pod_deletion_duration_seconds", Help: "Time from when a pod was due to its deletion.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240}}))
	return err
}

func sameTaints(a, b []v1.Taint) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Key != b[i].Key || a[i].Value != b[i].Value || a[i].Effect != b[i].Effect || !a[i].TimeAdded.Equal(b[i].TimeAdded) {
			return false
		}
	}
	return true
}

func (s *shell) sync(ctx context.Context, key cache.ObjectName) error {
	obj, found, err := s.pods.GetByKey(key.String())
	if err != nil {
		return err
	}
	if !found {
		s.forget(key)
		return nil
	}
	p := obj.(*v1.Pod)
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		s.forget(key)
		return nil
	}
	obj, found, err = s.nodes.GetByKey(p.Spec.NodeName)
	if err != nil || !found {
		return err
	}
	now := time.Now()
	s.mu.Lock()
	first, known := s.marked[key]
	if !known {
		first = now
	}
	pl := For(p, obj.(*v1.Node), first, now)
	if pl.Evict {
		s.marked[key] = first
	}
	s.mu.Unlock()
	switch {
	case !pl.Evict:
		if s.forget(key) {
			s.event(p, "Cancelling deletion of Pod "+key.String())
		}
		return nil
	case pl.At.After(now):
		s.queue.AddAfter(key, pl.At.Sub(now))
		return nil
	}
	return s.evict(ctx, p, first)
}

func (s *shell) forget(key cache.ObjectName) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known = s.marked[key]
	delete(s.marked, key)
	return known
}

// evict looks at pod and node as they are in the API before it deletes: a
// cache may still hold a taint that is gone.
func (s *shell) evict(ctx context.Context, cached *v1.Pod, first time.Time) error {
	pods := s.Client.CoreV1().Pods(cached.Namespace)
	p, err := pods.Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (p.UID != cached.UID || p.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading Pod %s/%s: %w", cached.Namespace, cached.Name, err)
	}
	n, err := s.Client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading Node %s: %w", p.Spec.NodeName, err)
	}
	now := time.Now()
	pl, due := Due(p, n, first, now)
	if !due {
		return nil // the event that says so is on its way and asks again
	}
	s.event(p, "Marking for deletion Pod "+p.Namespace+"/"+p.Name)
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
			Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}}},
	})
	if err != nil {
		return err
	}
	if _, err := pods.Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: "berth-taint-eviction"}, "status"); err != nil && !kube.Gone(err) {
		return fmt.Errorf("patching conditions of Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}); err != nil && !kube.Gone(err) {
		return fmt.Errorf("deleting Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.deletions.Inc()
	s.late.Observe(time.Since(pl.At).Seconds())
	s.Journal.Append(journal.Record{Time: now, Part: "eviction", Object: journal.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
		Decision: "deleted", Because: []journal.Fact{{Name: "node", Value: n.Name}, {Name: "cause", Value: pl.Why}, {Name: "due", Value: pl.At.UTC().Format(time.RFC3339)}}})
	return nil
}

func (s *shell) event(p *v1.Pod, message string) {
	if s.Events != nil {
		s.Events.Event(&v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, v1.EventTypeNormal, "TaintManagerEviction", message)
	}
}
