package aggregation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	registrationlisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"

	"github.com/berth-dev/berth/internal/controller"
)

// yieldBackoff is how long a failed registration waits to be tried again: not
// less, since a server that is not up yet fails all of them.
var yieldBackoff = controller.Backoff{First: 5 * time.Second, Most: 10 * time.Second}

// yieldKey is the only key of the queue: all groups are looked at together.
const yieldKey = "groups that yield to foreign servers"

// planYield is what to do with the registrations of a group that this server
// serves unless another party does: as soon as one version names a foreign
// server, all versions of ours go, so that no client gets two answers; when
// the last foreign one is deleted, ours come back. have are the registrations
// there are, by name; own are ours.
func planYield(have map[string]*apiregistrationv1.APIService, own []*apiregistrationv1.APIService) (create,
	remove []*apiregistrationv1.APIService) {
	foreign := false
	for _, o := range own {
		if h := have[o.Name]; h != nil && h.Spec.Service != nil {
			foreign = true
		}
	}
	for _, o := range own {
		switch h := have[o.Name]; {
		case h == nil && !foreign:
			create = append(create, o)
		case h != nil && h.Spec.Service == nil && foreign && h.DeletionTimestamp == nil:
			remove = append(remove, h)
		}
	}
	return create, remove
}

// yielder keeps the registrations of the groups that yield.
type yielder struct {
	groups [][]*apiregistrationv1.APIService
	client registrationclient.APIServicesGetter
	lister registrationlisters.APIServiceLister
	log    *slog.Logger
	queue  *controller.Queue
}

func newYielder(groups []Group, client registrationclient.APIServicesGetter, informer cache.SharedIndexInformer,
	log *slog.Logger) (*yielder, cache.DoneChecker, error) {
	y := &yielder{client: client, lister: registrationlisters.NewAPIServiceLister(informer.GetIndexer()), log: log,
		queue: controller.NewQueue().WithBackoff(yieldBackoff)}
	names := sets.New[string]()
	for _, g := range groups {
		own := local([]Group{g})
		for _, o := range own {
			// Lower than our other groups, as metrics-server registers itself.
			o.Spec.GroupPriorityMinimum = 100
			names.Insert(o.Name)
		}
		y.groups = append(y.groups, own)
	}
	seen := func(obj any) {
		if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = d.Obj
		}
		if s, ok := obj.(*apiregistrationv1.APIService); ok && names.Has(s.Name) {
			y.queue.Add(yieldKey)
		}
	}
	reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) },
		DeleteFunc: seen})
	if err != nil {
		return nil, nil, fmt.Errorf("watching API services: %w", err)
	}
	return y, reg.HasSyncedChecker(), nil
}

// run keeps the registrations until ctx ends; synced says that all that exist
// are known.
func (y *yielder) run(ctx context.Context, synced <-chan struct{}) {
	select {
	case <-synced:
	case <-ctx.Done():
		return
	}
	y.queue.Add(yieldKey)
	one := func(ctx context.Context, _ string) (time.Duration, error) { return 0, y.sync(ctx) }
	// It ends with ctx alone, and then without an error.
	_ = controller.Env{Name: "yielding-apiservices", Log: y.log}.Run(ctx, y.queue, 1, one)
}

func (y *yielder) sync(ctx context.Context) error {
	var failed []error
	for _, own := range y.groups {
		have := map[string]*apiregistrationv1.APIService{}
		for _, o := range own {
			if h, err := y.lister.Get(o.Name); err == nil {
				have[o.Name] = h
			}
		}
		create, remove := planYield(have, own)
		for _, s := range create {
			_, err := y.client.APIServices().Create(ctx, s.DeepCopy(), metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				failed = append(failed, fmt.Errorf("creating APIService %s: %w", s.Name, err))
			}
		}
		for _, s := range remove {
			err := y.client.APIServices().Delete(ctx, s.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				failed = append(failed, fmt.Errorf("deleting APIService %s: %w", s.Name, err))
			}
		}
	}
	return errors.Join(failed...)
}
