package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/kube"
)

// byService is the index of EndpointSlices by namespace/service.
const byService = "ui.service"

// syncTimeout bounds how long a first request waits for informers that no other
// part of the process had started.
const syncTimeout = 10 * time.Second

// source reads the shared informers. It implements view.Objects.
type source struct {
	factory informers.SharedInformerFactory
	life    context.Context //nolint:containedctx // informers live as long

	mu     sync.Mutex
	ready  bool
	stores map[string]cache.SharedIndexInformer // by kind
}

// start asks for the informers; those that other parts use run already.
func (s *source) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	f := s.factory
	s.stores = map[string]cache.SharedIndexInformer{
		"Node": f.Core().V1().Nodes().Informer(), "Pod": f.Core().V1().Pods().Informer(),
		"Namespace": f.Core().V1().Namespaces().Informer(), "Service": f.Core().V1().Services().Informer(),
		"PersistentVolumeClaim": f.Core().V1().PersistentVolumeClaims().Informer(),
		"EndpointSlice":         f.Discovery().V1().EndpointSlices().Informer(),
		"Deployment":            f.Apps().V1().Deployments().Informer(), "ReplicaSet": f.Apps().V1().ReplicaSets().Informer(),
		"StatefulSet": f.Apps().V1().StatefulSets().Informer(), "DaemonSet": f.Apps().V1().DaemonSets().Informer(),
		"Job": f.Batch().V1().Jobs().Informer(), "CronJob": f.Batch().V1().CronJobs().Informer(),
	}
	if err := kube.IndexPodsByNode(s.stores["Pod"]); err != nil {
		return err
	}
	err := kube.Index(s.stores["EndpointSlice"], cache.Indexers{byService: func(o any) ([]string, error) {
		e, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, nil
		}
		return []string{e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]}, nil
	}})
	if err != nil {
		return err
	}
	f.StartWithContext(s.life)
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for kind, inf := range s.stores {
		select {
		case <-inf.HasSyncedChecker().Done():
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the status page waits for the list of %s; try again in some seconds", kind)
			}
			return ctx.Err()
		}
	}
	s.ready = true
	return nil
}

// all are the objects of a kind in a namespace, or in all of them.
func all[T any](s *source, kind, namespace string) []T {
	inf := s.stores[kind]
	if inf == nil {
		return nil
	}
	list := inf.GetIndexer().List
	if namespace != "" {
		list = func() []any {
			out, err := inf.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
			if err != nil {
				return nil // every namespaced informer has that index
			}
			return out
		}
	}
	return typed[T](list())
}

func typed[T any](objects []any) []T {
	out := make([]T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// one is an object by its key, or the zero value.
func one[T any](s *source, kind, key string) (t T) {
	if inf := s.stores[kind]; inf != nil {
		if o, ok, err := inf.GetIndexer().GetByKey(key); err == nil && ok {
			t, _ = o.(T)
		}
	}
	return t
}

func (s *source) Nodes() []*v1.Node               { return all[*v1.Node](s, "Node", "") }
func (s *source) Node(name string) *v1.Node       { return one[*v1.Node](s, "Node", name) }
func (s *source) Pods(namespace string) []*v1.Pod { return all[*v1.Pod](s, "Pod", namespace) }
func (s *source) Pod(namespace, name string) *v1.Pod {
	return one[*v1.Pod](s, "Pod", namespace+"/"+name)
}
func (s *source) Namespaces() []*v1.Namespace { return all[*v1.Namespace](s, "Namespace", "") }
func (s *source) Services(namespace string) []*v1.Service {
	return all[*v1.Service](s, "Service", namespace)
}

func (s *source) Service(namespace, name string) *v1.Service {
	return one[*v1.Service](s, "Service", namespace+"/"+name)
}

func (s *source) Claim(namespace, name string) *v1.PersistentVolumeClaim {
	return one[*v1.PersistentVolumeClaim](s, "PersistentVolumeClaim", namespace+"/"+name)
}

func (s *source) PodsOn(node string) []*v1.Pod { return s.indexed("Pod", kube.ByNode, node) }

func (s *source) indexed(kind, index, value string) []*v1.Pod {
	out, err := s.stores[kind].GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil // start made the index
	}
	return typed[*v1.Pod](out)
}

func (s *source) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	out, err := s.stores["EndpointSlice"].GetIndexer().ByIndex(byService, namespace+"/"+service)
	if err != nil {
		return nil // start made the index
	}
	return typed[*discoveryv1.EndpointSlice](out)
}

func (s *source) Workloads(kind, namespace string) []metav1.Object {
	return all[metav1.Object](s, kind, namespace)
}

func (s *source) Workload(kind, namespace, name string) metav1.Object {
	return one[metav1.Object](s, kind, namespace+"/"+name)
}
