package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
)

// processLifetimeFactory is the shared informers as parts get them: anyone who starts an
// informer, it lives as long as the cluster. Otherwise the end of the part that
// happened to start it would leave all others with a cache that stands still.
type processLifetimeFactory struct {
	informers.SharedInformerFactory
	life context.Context
}

// Start starts what was asked for, for the cluster's life.
func (l processLifetimeFactory) Start(<-chan struct{}) {
	l.SharedInformerFactory.StartWithContext(l.life)
}

// StartWithContext starts what was asked for, for the cluster's life.
func (l processLifetimeFactory) StartWithContext(context.Context) {
	l.SharedInformerFactory.StartWithContext(l.life)
}

// shareInformers makes the informers that all parts of this process share.
func (u *up) shareInformers(context.Context) error {
	// No one here reads managed fields, and they are half of many objects.
	shared := informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithTransform(dropManagedFields))
	u.informers = processLifetimeFactory{shared, u.parts.Context()}
	return nil
}

// startInformers starts what the parts so far asked for.
func (u *up) startInformers(context.Context) error {
	u.informers.Start(nil)
	return nil
}

// dropManagedFields trims what the shared informers keep.
func dropManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
