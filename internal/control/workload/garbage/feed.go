package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
)

// sharedInformers are the caches that berth's controllers and scheduler run in
// any case; the rest is watched without a cache.
func sharedInformers(f informers.SharedInformerFactory) map[schema.GroupVersionResource]cache.SharedIndexInformer {
	gvr := func(g, v, r string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: g, Version: v, Resource: r}
	}
	return map[schema.GroupVersionResource]cache.SharedIndexInformer{
		gvr("", "v1", "pods"):                           f.Core().V1().Pods().Informer(),
		gvr("", "v1", "nodes"):                          f.Core().V1().Nodes().Informer(),
		gvr("", "v1", "services"):                       f.Core().V1().Services().Informer(),
		gvr("", "v1", "endpoints"):                      f.Core().V1().Endpoints().Informer(),
		gvr("", "v1", "namespaces"):                     f.Core().V1().Namespaces().Informer(),
		gvr("", "v1", "serviceaccounts"):                f.Core().V1().ServiceAccounts().Informer(),
		gvr("", "v1", "persistentvolumeclaims"):         f.Core().V1().PersistentVolumeClaims().Informer(),
		gvr("", "v1", "persistentvolumes"):              f.Core().V1().PersistentVolumes().Informer(),
		gvr("apps", "v1", "deployments"):                f.Apps().V1().Deployments().Informer(),
		gvr("apps", "v1", "replicasets"):                f.Apps().V1().ReplicaSets().Informer(),
		gvr("discovery.k8s.io", "v1", "endpointslices"): f.Discovery().V1().EndpointSlices().Informer(),
		gvr("policy", "v1", "poddisruptionbudgets"):     f.Policy().V1().PodDisruptionBudgets().Informer(),
		gvr("storage.k8s.io", "v1", "storageclasses"):   f.Storage().V1().StorageClasses().Informer(),
		gvr("storage.k8s.io", "v1", "csinodes"):         f.Storage().V1().CSINodes().Informer(),
	}
}

// feed follows one resource with a metadata watch. It remembers only the names
// and UIDs it has seen, to notice after a gap what is gone.
type feed struct {
	gvr    schema.GroupVersionResource
	api    metadata.Getter
	seen   func(id, metav1.Object, bool)
	listed chan struct{} // closed after the first listing
	log    *slog.Logger
	known  map[types.UID]id
}

// feedRetry are the pauses between attempts to follow a resource.
var feedRetry = controller.Backoff{First: 500 * time.Millisecond, Most: time.Minute}

func (f *feed) run(ctx context.Context) {
	retry := controller.Retry{Backoff: feedRetry}
	open := true
	done := func() {
		if open {
			close(f.listed)
			open = false
		}
	}
	defer done()
	for ctx.Err() == nil {
		version, err := f.list(ctx)
		if err == nil {
			done()
			retry.Succeeded()
			for err == nil {
				version, err = f.watch(ctx, version)
			}
		}
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			done() // not served after all: do not hold up the others
		}
		f.log.Debug("following a resource failed, will try again", "resource", f.gvr.String(), "err", err)
		controller.Sleep(ctx, retry.Failed())
	}
}

// list reads the metadata of all objects page by page, and reports those that
// disappeared since the last time.
func (f *feed) list(ctx context.Context) (version string, err error) {
	present := map[types.UID]bool{}
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := f.api.List(ctx, opts)
		if err != nil {
			return "", fmt.Errorf("listing %s: %w", f.gvr.Resource, err)
		}
		for i := range page.Items {
			present[page.Items[i].UID] = true
			f.observe(&page.Items[i])
		}
		if version = page.ResourceVersion; page.Continue == "" {
			break
		}
		opts.Continue = page.Continue
	}
	for uid, id := range f.known {
		if !present[uid] {
			delete(f.known, uid)
			f.seen(id, nil, true)
		}
	}
	return version, nil
}

func (f *feed) id(m metav1.Object) id { return id{f.gvr, m.GetNamespace(), m.GetName(), m.GetUID()} }

func (f *feed) observe(m metav1.Object) {
	id := f.id(m)
	f.known[id.UID] = id
	f.seen(id, m, false)
}

// watch follows changes until the server ends the watch, and returns where to
// go on. An error means that a new listing is needed.
func (f *feed) watch(ctx context.Context, version string) (string, error) {
	w, err := f.api.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return "", fmt.Errorf("watching %s: %w", f.gvr.Resource, err)
	}
	defer w.Stop()
	began := version
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok {
				if version == began {
					// A watch that ends at once and empty: do not spin.
					controller.Sleep(ctx, time.Second)
				}
				return version, nil
			}
			if ev.Type == watch.Error {
				return "", apierrors.FromObject(ev.Object)
			}
			m, err := meta.Accessor(ev.Object)
			if err != nil {
				return "", fmt.Errorf("watching %s: %w", f.gvr.Resource, err)
			}
			version = m.GetResourceVersion()
			switch ev.Type {
			case watch.Added, watch.Modified:
				f.observe(m)
			case watch.Deleted:
				delete(f.known, m.GetUID())
				f.seen(f.id(m), m, true)
			}
		}
	}
}
