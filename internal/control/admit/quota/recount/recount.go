// Package recount keeps the usage in ResourceQuota statuses true: admission
// adds to it as objects come, this controller counts again as they go, and
// once more after they came, for what admission could not know.
package recount

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/admit/quota"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// counted are the kinds that quota can count, with what tells whether an
// update may have freed something.
var counted = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "replicationcontrollers"},
	{Version: "v1", Resource: "resourcequotas"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
}

// Run counts until ctx ends.
func Run(ctx context.Context, e controller.Env) error {
	if err := e.Check(); err != nil {
		return err
	}
	c := &reconciler{Env: e, quotas: e.Informers.Core().V1().ResourceQuotas().Lister(), queue: controller.NewQueue()}
	watched, err := c.watch(ctx)
	if err != nil {
		return err
	}
	// Some kinds may have had no informer before.
	if err := e.Synced(ctx, watched...); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 1, c.count)
}

type reconciler struct {
	controller.Env
	quotas   corelisters.ResourceQuotaLister
	registry quotav1.Registry
	queue    *controller.Queue
	charges  charges
}

// watch adds handlers to every counted kind and fills the registry with their
// evaluators.
func (c *reconciler) watch(ctx context.Context) (watched []cache.DoneChecker, err error) {
	lister := generic.ListerFuncForResourceFunc(func(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
		return c.Informers.ForResource(gvr)
	})
	c.registry = generic.NewRegistry(quota.Evaluators(quota.Config{Lister: lister, Now: time.Now}))
	for _, gvr := range counted {
		if c.registry.Get(gvr.GroupResource()) == nil {
			c.registry.Add(generic.NewObjectCountEvaluator(gvr.GroupResource(), generic.ListResourceUsingListerFunc(lister, gvr), ""))
		}
		source, err := c.Informers.ForResource(gvr)
		if err != nil {
			return nil, fmt.Errorf("watching %s: %w", gvr.Resource, err)
		}
		seen, err := controller.Handle(ctx, source.Informer(), cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    c.added,
			UpdateFunc: c.updated,
			DeleteFunc: c.deleted,
		})
		if err != nil {
			return nil, fmt.Errorf("watching %s: %w", gvr.Resource, err)
		}
		watched = append(watched, seen)
	}
	return watched, nil
}

// settle is how long after an object came its quotas are counted again.
// Admission has charged it already, unless the server learnt of the quota at
// that very moment; a burst of objects is worth one count.
const settle = time.Second

func (c *reconciler) added(obj any, initial bool) {
	if q, ok := obj.(*corev1.ResourceQuota); ok {
		c.queue.Add(controller.Key(q))
	}
	if !initial {
		c.eachQuotaOf(obj, func(key string) { c.queue.After(key, settle) })
	}
}

func (c *reconciler) updated(before, after any) {
	if now, ok := after.(*corev1.ResourceQuota); ok {
		was, ok := before.(*corev1.ResourceQuota)
		if ok {
			c.charges.seen(controller.Key(now), was.Status.Used, now.Status.Used, time.Now())
		}
		// Someone else may have written limits into the status.
		if ok && (!equality.Semantic.DeepEqual(was.Spec, now.Spec) || !quotav1.Equals(now.Status.Hard, now.Spec.Hard)) {
			c.queue.Add(controller.Key(now))
		}
		return
	}
	if frees(before, after) {
		c.eachQuotaOf(after, c.queue.Add)
	}
}

// frees says whether an update may have given something back.
func frees(before, after any) bool {
	switch now := after.(type) {
	case *corev1.Pod:
		was, ok := before.(*corev1.Pod)
		return ok && (podutil.Terminal(now) && !podutil.Terminal(was) || !equality.Semantic.DeepEqual(was.Spec.Containers,
			now.Spec.Containers))
	case *corev1.Service:
		was, ok := before.(*corev1.Service)
		return ok && !equality.Semantic.DeepEqual(quota.ServiceUsage(was), quota.ServiceUsage(now))
	case *corev1.PersistentVolumeClaim:
		was, ok := before.(*corev1.PersistentVolumeClaim)
		return ok && !equality.Semantic.DeepEqual(quota.ClaimUsage(was), quota.ClaimUsage(now))
	}
	return false
}

func (c *reconciler) deleted(obj any) {
	if last, unseen := obj.(cache.DeletedFinalStateUnknown); unseen {
		obj = last.Obj
	}
	c.eachQuotaOf(obj, c.queue.Add)
}

// eachQuotaOf calls do for the quotas of an object's namespace.
func (c *reconciler) eachQuotaOf(obj any, do func(string)) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	quotas, err := c.quotas.ResourceQuotas(object.GetNamespace()).List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range quotas {
		do(controller.Key(q))
	}
}

func (c *reconciler) count(ctx context.Context, key string) (time.Duration, error) {
	namespace, name := controller.Split(key)
	q, err := c.quotas.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading quota %s: %w", key, err)
	}
	used, err := quotav1.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, c.registry, q.Spec.ScopeSelector)
	if err != nil {
		return 0, fmt.Errorf("counting for quota %s: %w", key, err)
	}
	pending := c.charges.since(key, time.Now().Add(-settle))
	used, again := withPending(used, q.Status.Used, pending)
	status := statusChange(q, used)
	if status == nil {
		return again, nil
	}
	// Admission adds to the same numbers: the version guards both.
	_, err = kube.Patch(ctx, c.Client.CoreV1().ResourceQuotas(namespace), q, kube.Unchanged,
		kube.Change{Status: status, Subresource: "status"})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("writing the status of quota %s: %w", key, err)
	}
	c.Tell(controller.Note{Part: "quota", Kind: "ResourceQuota", Object: q, Decision: "counted usage again", Level: slog.LevelDebug,
		Because: []journal.Fact{{Name: "used", Value: fmt.Sprint(quotaText(used))}}})
	return again, nil
}

func quotaText(list corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, quantity := range list {
		out[string(name)] = quantity.String()
	}
	return out
}

// statusChange brings the status to the spec's limits and this usage; nil when
// it is there already.
func statusChange(q *corev1.ResourceQuota, used corev1.ResourceList) map[string]any {
	// Names nothing counts are limited all the same, at zero used.
	all := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		all[name] = used[name]
	}
	if quotav1.Equals(q.Status.Hard, q.Spec.Hard) && quotav1.Equals(q.Status.Used, all) {
		return nil
	}
	return map[string]any{"hard": withRemovals(q.Status.Hard, q.Spec.Hard), "used": withRemovals(q.Status.Used, all)}
}

// withRemovals is a merge patch from one list to another: null removes.
func withRemovals(from, to corev1.ResourceList) map[string]any {
	out := map[string]any{}
	for name := range from {
		out[string(name)] = nil
	}
	for name, quantity := range to {
		out[string(name)] = quantity
	}
	return out
}
