package podgc

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

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Config is what the collector needs. Metrics may be nil. Keep is how many
// finished pods may stay, 0 for all.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Keep      int
}

const (
	manager = "berth-pod-gc"
	workers = 4
)

type shell struct {
	Config
	queue        kube.Queue[string]
	pods, nodes  cache.Indexer
	deleted, bad *prometheus.CounterVec

	mu       sync.Mutex
	missing  map[string]time.Time // nodes that pods name and nobody knows
	finished *Finished
}

// Run collects until ctx ends. It starts with no memory: a node that is
// missing at its start gets the whole quarantine again.
func Run(ctx context.Context, cfg Config) error {
	s := &shell{Config: cfg, missing: map[string]time.Time{}, finished: NewFinished(),
		queue: kube.NewQueue[string]("pod-gc", 50*time.Millisecond, time.Minute)}
	defer s.queue.ShutDown()
	if err := s.measure(); err != nil {
		return err
	}
	podInf, nodeInf := cfg.Informers.Core().V1().Pods().Informer(), cfg.Informers.Core().V1().Nodes().Informer()
	if err := kube.IndexPodsByNode(podInf); err != nil {
		return err
	}
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	nodeReg, err := nodeInf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.seeNode, UpdateFunc: func(old, o any) { s.seeNodeAgain(old, o) }, DeleteFunc: s.loseNode})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer nodeInf.RemoveEventHandler(nodeReg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	// A pod whose node is not listed yet is no orphan: nodes come first.
	if !kube.Synced(ctx, nodeReg) {
		return ctx.Err()
	}
	podReg, err := podInf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.seePod, UpdateFunc: func(_, o any) { s.seePod(o) }, DeleteFunc: s.losePod})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer podInf.RemoveEventHandler(podReg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, podReg) {
		return ctx.Err()
	}
	kube.Work(ctx, s.queue, workers, s.Log, "collecting a pod", s.sync)
	return ctx.Err()
}

func (s *shell) measure() (err error) {
	labels := []string{"namespace", "reason"}
	if s.deleted, err = kube.Registered(s.Metrics, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_gc_collector_force_delete_pods_total", Help: "Pods deleted without grace."}, labels)); err != nil {
		return err
	}
	s.bad, err = kube.Registered(s.Metrics, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_gc_collector_force_delete_pod_errors_total", Help: "Failures to delete pods without grace."}, labels))
	return err
}

// seeNode ends a node's absence, and asks again about its pods.
func (s *shell) seeNode(o any) {
	n, ok := o.(*v1.Node)
	if !ok {
		return
	}
	s.mu.Lock()
	delete(s.missing, n.Name)
	s.mu.Unlock()
	if NodeOf(n).Dead {
		s.ask(n.Name)
	}
}

func (s *shell) seeNodeAgain(old, o any) {
	a, ok := old.(*v1.Node)
	b, ok2 := o.(*v1.Node)
	if ok && ok2 && NodeOf(a) != NodeOf(b) {
		s.seeNode(o)
	}
}

func (s *shell) loseNode(o any) {
	if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
		s.ask(name.Name)
	}
}

// ask looks at every pod of a node.
func (s *shell) ask(node string) {
	keys, err := s.pods.IndexKeys(kube.ByNode, node)
	if err != nil {
		s.Log.Error("finding the pods of a node", "node", node, "error", err)
	}
	for _, key := range keys {
		s.queue.Add(key)
	}
}

func (s *shell) seePod(o any) {
	p, ok := o.(*v1.Pod)
	if !ok {
		return
	}
	key := cache.ObjectName{Namespace: p.Namespace, Name: p.Name}.String()
	s.mu.Lock()
	s.finished.See(key, p)
	over := s.finished.Over(s.Keep)
	s.mu.Unlock()
	for _, k := range over {
		s.queue.Add(k)
	}
	if why, _ := Judge(p, s.node(p.Spec.NodeName)); why != None {
		s.queue.Add(key)
	}
}

func (s *shell) losePod(o any) {
	if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
		s.mu.Lock()
		s.finished.Forget(name.String())
		s.mu.Unlock()
	}
}

// node is what the cache knows of a node.
func (s *shell) node(name string) Node {
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

func (s *shell) sync(ctx context.Context, key string) error {
	o, found, err := s.pods.GetByKey(key)
	if err != nil || !found {
		return err
	}
	p := o.(*v1.Pod)
	why, from := Judge(p, s.node(p.Spec.NodeName))
	s.mu.Lock()
	picked := s.finished.Picked(key)
	s.mu.Unlock()
	switch {
	case why == None && picked:
		why = Terminated
	case why == None:
		return nil
	case why == Orphaned:
		if wait := time.Until(from); wait > 0 {
			s.queue.AddAfter(key, wait)
			return nil
		}
	}
	if sure, err := s.sure(ctx, p, why); err != nil || !sure {
		return err
	}
	if err := s.collect(ctx, p, why); err != nil {
		s.bad.WithLabelValues(p.Namespace, string(why)).Inc()
		return err
	}
	return nil
}

// sure looks at the node in the API itself before its pods go: a cache may be
// late (kubernetes/kubernetes#142331).
func (s *shell) sure(ctx context.Context, p *v1.Pod, why Reason) (bool, error) {
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
func (s *shell) collect(ctx context.Context, p *v1.Pod, why Reason) error {
	pods := s.Client.CoreV1().Pods(p.Namespace)
	if !finished(p) {
		status := map[string]any{"phase": v1.PodFailed}
		if why == Orphaned {
			status["conditions"] = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
				ObservedGeneration: p.Generation, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists"}}
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: manager}, "status")
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
	s.Log.Info("collected a pod", "pod", p.Namespace+"/"+p.Name, "reason", why)
	s.Journal.Append(journal.Record{Time: time.Now(), Part: "podgc", Object: journal.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
		Decision: "deleted without grace", Because: []journal.Fact{{Name: "reason", Value: string(why)}, {Name: "node", Value: p.Spec.NodeName}}})
	return nil
}
