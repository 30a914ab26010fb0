package cluster

import (
	"context"

	"k8s.io/client-go/informers"
)

// lasting is the shared informers as parts get them: whoever starts an
// informer, it lives as long as the cluster. Otherwise the end of the part that
// happened to start it would leave all others with a cache that stands still.
type lasting struct {
	informers.SharedInformerFactory
	life context.Context
}

// Start starts what was asked for, for the cluster's life.
func (l lasting) Start(<-chan struct{}) { l.SharedInformerFactory.StartWithContext(l.life) }

// StartWithContext starts what was asked for, for the cluster's life.
func (l lasting) StartWithContext(context.Context) { l.SharedInformerFactory.StartWithContext(l.life) }
