package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// ByNode is the index of pods by the node they are bound to; pods that are not
// bound are not in it.
const ByNode = "spec.nodeName"

// indexing serializes additions: controllers start side by side and share
// informers.
var indexing sync.Mutex

// Index adds indexes to an informer, except those of a name it has already.
func Index(inf cache.SharedIndexInformer, want cache.Indexers) error {
	indexing.Lock()
	defer indexing.Unlock()
	have := inf.GetIndexer().GetIndexers()
	missing := cache.Indexers{}
	for name, f := range want {
		if have[name] == nil {
			missing[name] = f
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := inf.AddIndexers(missing); err != nil {
		return fmt.Errorf("indexing a cache: %w", err)
	}
	return nil
}

// IndexPodsByNode adds the index ByNode to an informer of pods, unless it has
// it already.
func IndexPodsByNode(inf cache.SharedIndexInformer) error {
	return Index(inf, cache.Indexers{ByNode: podNode})
}

func podNode(o any) ([]string, error) {
	if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}, nil
	}
	return nil, nil
}

// Synced waits until the handlers have seen everything that existed when they
// were added. It is false if ctx ended first.
func Synced(ctx context.Context, handlers ...cache.ResourceEventHandlerRegistration) bool {
	for _, h := range handlers {
		select {
		case <-h.HasSyncedChecker().Done():
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Registered registers a collector and returns it, or the equal one that an
// earlier run in this process registered. A nil registerer keeps it private.
func Registered[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	if reg == nil {
		return c, nil
	}
	err := reg.Register(c)
	var twice prometheus.AlreadyRegisteredError
	if errors.As(err, &twice) {
		if old, ok := twice.ExistingCollector.(C); ok {
			return old, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("registering metrics: %w", err)
	}
	return c, nil
}
