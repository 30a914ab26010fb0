package eviction

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

type reconciler struct {
	controller.Env
	events    record.EventRecorder
	queue     *controller.Queue
	pods      cache.Indexer
	nodes     cache.Indexer
	deletions prometheus.Counter
	late      prometheus.Histogram

	mu sync.Mutex
	// marked are pods under a taint that will evict them, by key, with when
	// this process first saw that.
	marked map[string]time.Time
}

// Run evicts until ctx ends. All it knows is in the API (a taint carries when
// it was added), so a restart moves no deadline.
func Run(ctx context.Context, e controller.Env) error {
	if err := e.Check(); err != nil {
		return err
	}
	s := &reconciler{Env: e, events: e.Recorder("taint-eviction-controller"), marked: map[string]time.Time{},
		queue: controller.NewMeasuredQueue("taint-eviction", controller.Backoff{First: 10 * time.Millisecond, Most: 30 * time.Second})}
	if err := s.measure(); err != nil {
		return err
	}
	podInf, nodeInf := e.Informers.Core().V1().Pods().Informer(), e.Informers.Core().V1().Nodes().Informer()
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	if err := kube.IndexPodsByNode(podInf); err != nil {
		return err
	}
	pods, err1 := controller.On(ctx, podInf, func(_, p *v1.Pod, _ bool) { s.queue.Add(controller.Key(p)) })
	nodes, err2 := controller.On(ctx, nodeInf, func(old, n *v1.Node, gone bool) {
		if gone || old != nil && old.ResourceVersion != n.ResourceVersion && sameTaints(old.Spec.Taints, n.Spec.Taints) {
			return
		}
		bound, err := s.pods.IndexKeys(kube.ByNode, n.Name)
		if err != nil {
			s.Log.Error("finding the pods of a node", "node", n.Name, "err", err)
		}
		for _, key := range bound {
			s.queue.Add(key)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, pods, nodes); err != nil {
		return err
	}
	return e.Run(ctx, s.queue, 4, s.sync)
}

func (s *reconciler) measure() (err error) {
	if s.deletions, err = kube.Registered(s.Registerer, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "taint_eviction_controller_pod_deletions_total", Help: "Pods deleted for a NoExecute taint."})); err != nil {
		return err
	}
	s.late, err = kube.Registered(s.Registerer, prometheus.NewHistogram(prometheus.HistogramOpts{
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

func (s *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	obj, found, err := s.pods.GetByKey(key)
	if err != nil {
		return 0, err
	}
	if !found {
		s.forget(key)
		return 0, nil
	}
	p := obj.(*v1.Pod)
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		s.forget(key)
		return 0, nil
	}
	obj, found, err = s.nodes.GetByKey(p.Spec.NodeName)
	if err != nil || !found {
		return 0, err
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
			s.event(p, "Cancelling deletion of Pod "+key)
		}
		return 0, nil
	case pl.At.After(now):
		return pl.At.Sub(now), nil
	}
	return 0, s.evict(ctx, p, first)
}

func (s *reconciler) forget(key string) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known = s.marked[key]
	delete(s.marked, key)
	return known
}

// evict looks at pod and node as they are in the API before it deletes: a
// cache may still hold a taint that is gone.
func (s *reconciler) evict(ctx context.Context, cached *v1.Pod, first time.Time) error {
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
	condition := v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}
	_, err = kube.Patch(ctx, pods, p, kube.SameObject,
		kube.Change{Status: kube.Conditions[v1.PodCondition]{Conditions: []v1.PodCondition{condition}},
			Subresource: "status", Strategic: true, Manager: "berth-taint-eviction"})
	if err != nil && !kube.Gone(err) {
		return fmt.Errorf("patching conditions of Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if err := pods.Delete(ctx, p.Name, kube.SameUID(p)); err != nil && !kube.Gone(err) {
		return fmt.Errorf("deleting Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.deletions.Inc()
	s.late.Observe(time.Since(pl.At).Seconds())
	s.Tell(controller.Note{Part: "eviction", Kind: "Pod", Object: p, Decision: "deleted",
		Because: []journal.Fact{{Name: "node", Value: n.Name},
			{Name: "cause", Value: pl.Why}, {Name: "due", Value: pl.At.UTC().Format(time.RFC3339)}}})
	return nil
}

func (s *reconciler) event(p *v1.Pod, message string) {
	s.Tell(controller.Note{Kind: "Pod", Object: p, Event: controller.Event{To: s.events, Reason: "TaintManagerEviction", Message: message}})
}
