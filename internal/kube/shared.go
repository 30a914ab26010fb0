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

// IndexPodsByNode adds the index ByNode to an informer of pods, unless it has
// it already.
func IndexPodsByNode(inf cache.SharedIndexInformer) error {
	indexing.Lock()
	defer indexing.Unlock()
	if inf.GetIndexer().GetIndexers()[ByNode] != nil {
		return nil
	}
	if err := inf.AddIndexers(cache.Indexers{ByNode: podNode}); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	return nil
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
