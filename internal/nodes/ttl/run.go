package ttl

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

type reconciler struct {
	controller.Env
	queue *controller.Queue
	nodes cache.Indexer

	mu    sync.Mutex
	count int
	step  step
}

// Run annotates nodes until ctx ends. When the step changes, each node is
// rewritten at its next change (a status every five minutes at the latest) and
// not all of them at once.
func Run(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Core().V1().Nodes().Informer()
	s := &reconciler{Env: e, nodes: inf.GetIndexer(), queue: controller.NewMeasuredQueue("node-ttl",
		controller.Backoff{First: 50 * time.Millisecond, Most: time.Minute})}
	seen, err := controller.On(ctx, inf, func(old, n *v1.Node, gone bool) {
		switch {
		case gone:
			s.resize(-1)
			return
		case old == nil:
			s.resize(1)
		}
		s.onNode(n)
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	if err := e.Synced(ctx, seen); err != nil {
		return err
	}
	return e.Run(ctx, s.queue, 1, s.sync)
}

func (s *reconciler) resize(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count += by
	s.step = s.step.Next(s.count)
}

// want is the annotation's value now.
func (s *reconciler) want() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(s.step.Seconds())
}

func (s *reconciler) onNode(n *v1.Node) {
	if n.Annotations[Annotation] != s.want() {
		s.queue.Add(n.Name)
	}
}

func (s *reconciler) sync(ctx context.Context, name string) (time.Duration, error) {
	o, found, err := s.nodes.GetByKey(name)
	if err != nil || !found {
		return 0, err
	}
	n, want := o.(*v1.Node), s.want()
	if n.Annotations[Annotation] == want {
		return 0, nil
	}
	_, err = kube.Patch(ctx, s.Client.CoreV1().Nodes(), n, kube.SameObject,
		kube.Change{Annotations: map[string]*string{Annotation: &want}, Manager: "berth-node-ttl"})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("patching Node %s: %w", name, err)
	}
	return 0, nil
}
