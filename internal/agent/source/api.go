package source

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/podutil"
)

// runAPI watches the pods bound to this node.
func (s *set) runAPI(ctx context.Context) {
	pods := s.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)
	selector := fields.OneTermEqualSelector("spec.nodeName", s.cfg.NodeName).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return pods.Watch(ctx, o)
		},
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client),
		ObjectType:    &v1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.apiPod(o.(*v1.Pod)) },
			UpdateFunc: func(_, o any) { s.apiPod(o.(*v1.Pod)) },
			DeleteFunc: func(o any) {
				if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = d.Obj
				}
				if p, ok := o.(*v1.Pod); ok {
					s.apiPodGone(p)
				}
			},
		},
		Transform: func(o any) (any, error) {
			if p, ok := o.(*v1.Pod); ok {
				fromAPI(p)
			}
			return o, nil
		},
	})
	go func() {
		if cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
			s.reported("api")
		}
	}()
	informer.RunWithContext(ctx)
}

// fromAPI drops managed fields, which are of no use here and half of the
// object, and what a pod says of where it comes from: anyone who may create pods
// could else make one that passes for static, which nothing evicts.
func fromAPI(p *v1.Pod) {
	p.ManagedFields = nil
	if p.Annotations[AnnotationSource] != "" && !podutil.Mirror(p) {
		p.Annotations[AnnotationSource] = "api"
	}
}

func (s *set) apiPod(p *v1.Pod) {
	if p.Spec.NodeName != s.cfg.NodeName {
		return
	}
	if !podutil.Mirror(p) {
		s.cfg.Sink.Set(p, false)
		return
	}
	s.mu.Lock()
	s.mirrors[nameOf(p)] = p
	s.mu.Unlock()
	s.reportMirror(nameOf(p))
	s.touchMirror(nameOf(p))
}

func (s *set) apiPodGone(p *v1.Pod) {
	if !podutil.Mirror(p) {
		s.cfg.Sink.Remove(p.UID)
		return
	}
	s.mu.Lock()
	if m := s.mirrors[nameOf(p)]; m != nil && m.UID == p.UID {
		delete(s.mirrors, nameOf(p))
	}
	s.mu.Unlock()
	s.reportMirror(nameOf(p))
	s.touchMirror(nameOf(p))
}
