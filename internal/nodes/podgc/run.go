package podgc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

const (
	manager = "berth-pod-gc"
	workers = 4
)

type reconciler struct {
	controller.Env
	keep         int
	queue        *controller.Queue
	pods, nodes  cache.Indexer
	deleted, bad *prometheus.CounterVec

	mu       sync.Mutex
	missing  map[string]time.Time // nodes that pods name and no one knows
	finished *finished
}

// Run collects until ctx ends; keep is how many finished pods may stay, 0 for
// all. It starts with no memory: a node that is missing at its start gets the
// whole quarantine again.
func Run(ctx context.Context, e controller.Env, keep int) error {
	if err := e.Check(); err != nil {
		return err
	}
	s := &reconciler{Env: e, keep: keep, missing: map[string]time.Time{}, finished: newFinished(),
		queue: controller.NewMeasuredQueue("pod-gc", controller.Backoff{First: 50 * time.Millisecond, Most: time.Minute})}
	if err := s.measure(); err != nil {
		return err
	}
	podInf, nodeInf := e.Informers.Core().V1().Pods().Informer(), e.Informers.Core().V1().Nodes().Informer()
	if err := kube.IndexPodsByNode(podInf); err != nil {
		return err
	}
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	nodes, err := controller.On(ctx, nodeInf, s.onNode)
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	// A pod whose node is not listed yet is no orphan: nodes come first.
	if err := e.Synced(ctx, nodes); err != nil {
		return err
	}
	pods, err := controller.On(ctx, podInf, func(_, p *v1.Pod, gone bool) {
		if gone {
			s.forget(p)
			return
		}
		s.onPod(p)
	})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	if err := e.Synced(ctx, pods); err != nil {
		return err
	}
	return e.Run(ctx, s.queue, workers, s.sync)
}

func (s *reconciler) measure() (err error) {
	labels := []string{"namespace", "reason"}
	if s.deleted, err = kube.Registered(s.Registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_gc_collector_force_delete_pods_total", Help: "Pods deleted without grace."}, labels)); err != nil {
		return err
	}
	s.bad, err = kube.Registered(s.Registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_gc_collector_force_delete_pod_errors_total", Help: "Failures to delete pods without grace."}, labels))
	return err
}

// onNode ends a node's absence, and asks again about its pods where that may
// matter.
func (s *reconciler) onNode(old, n *v1.Node, gone bool) {
	switch {
	case gone:
		s.enqueuePodsOf(n.Name)
		return
	case old != nil && NodeOf(old) == NodeOf(n):
		return
	}
	s.mu.Lock()
	delete(s.missing, n.Name)
	s.mu.Unlock()
	if NodeOf(n).Dead {
		s.enqueuePodsOf(n.Name)
	}
}

// enqueuePodsOf enqueues every pod of a node.
func (s *reconciler) enqueuePodsOf(node string) {
	keys, err := s.pods.IndexKeys(kube.ByNode, node)
	if err != nil {
		s.Log.Error("finding the pods of a node", "node", node, "err", err)
	}
	for _, key := range keys {
		s.queue.Add(key)
	}
}

func (s *reconciler) onPod(p *v1.Pod) {
	key := controller.Key(p)
	s.mu.Lock()
	s.finished.Observe(key, p)
	over := s.finished.TakeExcess(s.keep)
	s.mu.Unlock()
	for _, k := range over {
		s.queue.Add(k)
	}
	if why, _ := Evaluate(p, s.node(p.Spec.NodeName)); why != None {
		s.queue.Add(key)
	}
}

func (s *reconciler) forget(p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished.Forget(controller.Key(p))
}

// node is what the cache knows of a node.
func (s *reconciler) node(name string) Node {
	if name == "" {
		return Node{}
	}
	if o, found, err := s.nodes.GetByKey(name); err == nil && found {
		return NodeOf(o.(*v1.Node))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	since, known := s.missing[name]
	if !known {
		since = time.Now()
		s.missing[name] = since
	}
	return Node{Missing: since}
}

func (s *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	o, found, err := s.pods.GetByKey(key)
	if err != nil || !found {
		return 0, err
	}
	p := o.(*v1.Pod)
	why, from := Evaluate(p, s.node(p.Spec.NodeName))
	s.mu.Lock()
	picked := s.finished.Picked(key)
	s.mu.Unlock()
	switch {
	case why == None && picked:
		why = Terminated
	case why == None:
		return 0, nil
	case why == Orphaned:
		if wait := time.Until(from); wait > 0 {
			return wait, nil
		}
	}
	if sure, err := s.confirmNode(ctx, p, why); err != nil || !sure {
		return 0, err
	}
	if err := s.collect(ctx, p, why); err != nil {
		s.bad.WithLabelValues(p.Namespace, string(why)).Inc()
		return 0, err
	}
	return 0, nil
}

// confirmNode reads the node from the API before its pods are deleted: a cache may be
// late (kubernetes/kubernetes#142331).
func (s *reconciler) confirmNode(ctx context.Context, p *v1.Pod, why Reason) (bool, error) {
	if why != Orphaned && why != OutOfService {
		return true, nil
	}
	n, err := s.Client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return why == Orphaned, nil
	case err != nil:
		return false, fmt.Errorf("reading Node %s: %w", p.Spec.NodeName, err)
	}
	return why == OutOfService && NodeOf(n).Dead, nil
}

// collect marks the pod Failed, so that its owners see an end, and deletes it
// without grace. Both only reach the very pod that was judged.
func (s *reconciler) collect(ctx context.Context, p *v1.Pod, why Reason) error {
	pods := s.Client.CoreV1().Pods(p.Namespace)
	if !podutil.Terminal(p) {
		status := applyv1.PodStatus().WithPhase(v1.PodFailed)
		if why == Orphaned {
			status.WithConditions(applyv1.PodCondition().WithType(v1.DisruptionTarget).WithStatus(v1.ConditionTrue).WithLastTransitionTime(
				metav1.Now()).
				WithObservedGeneration(p.Generation).WithReason("DeletionByPodGC").WithMessage("PodGC: node no longer exists"))
		}
		_, err := kube.Patch(ctx, pods, p, kube.SameObject, kube.Change{Status: status, Subresource: "status", Strategic: true,
			Manager: manager})
		if kube.Gone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("marking Pod %s/%s failed: %w", p.Namespace, p.Name, err)
		}
	}
	none := int64(0)
	err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if kube.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.deleted.WithLabelValues(p.Namespace, string(why)).Inc()
	s.Tell(controller.Note{Part: "podgc", Kind: "Pod", Object: p, Decision: "deleted without grace",
		Because: []journal.Fact{{Name: "reason", Value: string(why)}, {Name: "node", Value: p.Spec.NodeName}}})
	return nil
}
