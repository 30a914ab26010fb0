package source

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/controller"
)

// newMirrorQueue holds the names of the mirror pods to look at.
func newMirrorQueue() *controller.Queue {
	return controller.NewQueue().WithBackoff(controller.Backoff{First: 50 * time.Millisecond, Most: 10 * time.Second})
}

// mirrorStep is what a mirror pod needs next.
type mirrorStep int

// The steps.
const (
	MirrorKeep mirrorStep = iota
	MirrorCreate
	MirrorDelete
)

// nextMirrorStep decides about the mirror of one name. static is the pod that
// runs here or nil, mirror what the API holds or nil; complete tells whether
// all static sources have reported, before which nothing is an orphan.
func nextMirrorStep(static, mirror *v1.Pod, complete bool) mirrorStep {
	switch {
	case static == nil && mirror != nil && complete:
		return MirrorDelete
	case static == nil:
		return MirrorKeep
	case mirror == nil:
		return MirrorCreate
	case mirror.DeletionTimestamp != nil, mirror.Annotations[AnnotationMirror] != static.Annotations[AnnotationHash]:
		return MirrorDelete
	}
	return MirrorKeep
}

// touchMirror looks at one name's mirror soon.
func (s *set) touchMirror(n types.NamespacedName) {
	if s.queue != nil {
		s.queue.Add(n.String())
	}
}

// runMirrors keeps the mirrors right until ctx ends. It waits for the node to
// be registered: a mirror is owned by its Node.
func (s *set) runMirrors(ctx context.Context) {
	var waits sync.WaitGroup
	defer waits.Wait()
	if s.cfg.NodeReady != nil {
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.NodeReady:
		}
	}
	one := func(ctx context.Context, key string) (time.Duration, error) {
		namespace, name := controller.Split(key)
		return 0, s.syncMirror(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &waits)
	}
	// It ends with ctx alone, and then without an error.
	_ = controller.Env{Name: "mirror-pods", Log: s.cfg.Log}.Run(ctx, s.queue, 1, one)
}

func (s *set) syncMirror(ctx context.Context, name types.NamespacedName, waits *sync.WaitGroup) error {
	s.mu.Lock()
	static, mirror := s.staticNamed(name), s.mirrors[name]
	complete, synced := len(s.waiting) == 0, !s.waiting["api"]
	s.mu.Unlock()
	if !synced {
		return nil // reported looks at all of them again
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	pods := s.cfg.Client.CoreV1().Pods(name.Namespace)
	switch nextMirrorStep(static, mirror, complete) {
	case MirrorCreate:
		_, err := pods.Create(ctx, newMirror(static, s.cfg.NodeName, s.cfg.Node()), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating mirror pod %s: %w", name, err)
		}
	case MirrorDelete:
		if s.outlived(parent, name, mirror, waits) {
			return nil
		}
		err := pods.Delete(ctx, name.Name, metav1.DeleteOptions{GracePeriodSeconds: zero,
			Preconditions: metav1.NewUIDPreconditions(string(mirror.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting mirror pod %s: %w", name, err)
		}
	}
	return nil
}

// outlived tells whether a mirror has to stay because its pod still ends; it is
// looked at again when that is over.
func (s *set) outlived(ctx context.Context, name types.NamespacedName, mirror *v1.Pod, waits *sync.WaitGroup) bool {
	if s.cfg.Ending == nil {
		return false
	}
	ending := s.cfg.Ending(types.UID(mirror.Annotations[AnnotationMirror]))
	if ending == nil {
		return false
	}
	select {
	case <-ending:
		return false
	default:
	}
	s.mu.Lock()
	already := s.awaited[name]
	s.awaited[name] = true
	s.mu.Unlock()
	if already {
		return true
	}
	waits.Go(func() {
		select {
		case <-ctx.Done():
		case <-ending:
		}
		s.mu.Lock()
		delete(s.awaited, name)
		s.mu.Unlock()
		s.touchMirror(name)
	})
	return true
}

// newMirror is the API object that stands for a static pod.
func newMirror(static *v1.Pod, nodeName string, node types.UID) *v1.Pod {
	m := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: static.Name, Namespace: static.Namespace,
			Labels: maps.Clone(static.Labels), Annotations: maps.Clone(static.Annotations),
		},
		Spec: *static.Spec.DeepCopy(),
	}
	m.Annotations[AnnotationMirror] = static.Annotations[AnnotationHash]
	if node != "" {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node, Controller: &yes}}
	}
	return m
}
