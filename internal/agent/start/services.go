package start

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Services are what pods' environments name; they are watched.
type Services struct {
	lister corelisters.ServiceLister
	synced cache.DoneChecker
}

// WatchServices watches the Services of all namespaces until ctx ends.
func WatchServices(ctx context.Context, client kubernetes.Interface) *Services {
	factory := informers.NewSharedInformerFactory(client, 0)
	s := factory.Core().V1().Services()
	out := &Services{lister: s.Lister(), synced: s.Informer().HasSyncedChecker()}
	factory.Start(ctx.Done())
	return out
}

// of are the services a pod's environment may name.
func (s *Services) of(ctx context.Context, p *v1.Pod) ([]*v1.Service, error) {
	if err := s.wait(ctx); err != nil {
		return nil, fmt.Errorf("services have not yet been read at least once, cannot construct envvars: %w", err)
	}
	out, err := s.lister.Services(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	if p.Namespace != metav1.NamespaceDefault {
		if k, err := s.lister.Services(metav1.NamespaceDefault).Get("kubernetes"); err == nil {
			out = append(out, k)
		}
	}
	return out, nil
}

// wait returns once the services were read for the first time.
func (s *Services) wait(ctx context.Context) error {
	if cache.IsDone(s.synced) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if !cache.WaitFor(ctx, "", s.synced) {
		return ctx.Err()
	}
	return nil
}
