package ttl

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/kube"
)

// Config is what the controller needs.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
}

type shell struct {
	Config
	queue kube.Queue[string]
	nodes cache.Indexer

	mu    sync.Mutex
	count int
	step  Step
}

// Run annotates nodes until ctx ends. When the step changes, each node is
// rewritten at its next change (a status every five minutes at the latest) and
// not all of them at once.
func Run(ctx context.Context, cfg Config) error {
	s := &shell{Config: cfg, queue: kube.NewQueue[string]("node-ttl", 50*time.Millisecond, time.Minute)}
	defer s.queue.ShutDown()
	inf := cfg.Informers.Core().V1().Nodes().Informer()
	s.nodes = inf.GetIndexer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.resize(1); s.see(o) },
		UpdateFunc: func(_, o any) { s.see(o) },
		DeleteFunc: func(any) { s.resize(-1) },
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, reg) {
		return ctx.Err()
	}
	kube.Work(ctx, s.queue, 1, s.Log, "annotating a node with its ttl", s.sync)
	return ctx.Err()
}

func (s *shell) resize(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count += by
	s.step = s.step.Next(s.count)
}

// want is the annotation's value now.
func (s *shell) want() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(s.step.Seconds())
}

func (s *shell) see(o any) {
	if n, ok := o.(*v1.Node); ok && n.Annotations[Annotation] != s.want() {
		s.queue.Add(n.Name)
	}
}

func (s *shell) sync(ctx context.Context, name string) error {
	o, found, err := s.nodes.GetByKey(name)
	if err != nil || !found {
		return err
	}
	n, want := o.(*v1.Node), s.want()
	if n.Annotations[Annotation] == want {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "annotations": map[string]string{Annotation: want}}})
	if err != nil {
		return err
	}
	_, err = s.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "berth-node-ttl"})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching Node %s: %w", name, err)
	}
	return nil
}
