// Package recount keeps the usage in ResourceQuota statuses true: admission
// adds to it as objects come, this controller counts again as they go, and
// once more after they came, for what admission could not know.
package recount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/control/admit/quota"
	"github.com/berth-dev/berth/internal/journal"
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
}

// Config is what the controller needs. Journal may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
	// Now is for tests; nil: time.Now.
	Now func() time.Time
}

// Run counts until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Log == nil {
		return errors.New("starting to count quota: Client, Informers and Log are required")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &controller{Config: cfg, quotas: cfg.Informers.Core().V1().ResourceQuotas().Lister()}
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
	defer c.queue.ShutDown()
	undo, synced, err := c.watch()
	defer undo()
	if err != nil {
		return err
	}
	// Some kinds may have had no informer before.
	cfg.Informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for c.next(ctx) {
	}
	return nil
}

type controller struct {
	Config
	quotas   corelisters.ResourceQuotaLister
	registry quotav1.Registry
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// watch registers handlers on every counted kind and fills the registry with
// their evaluators.
func (c *controller) watch() (undo func(), synced []cache.InformerSynced, err error) {
	var removals []func()
	undo = func() {
		for _, remove := range removals {
			remove()
		}
	}
	lister := generic.ListerFuncForResourceFunc(func(gvr schema.GroupVersionResource) (informers.GenericInformer, error) {
		return c.Informers.ForResource(gvr)
	})
	c.registry = generic.NewRegistry(quota.Evaluators(quota.Config{Lister: lister, Now: c.Now}))
	for _, gvr := range counted {
		if c.registry.Get(gvr.GroupResource()) == nil {
			c.registry.Add(generic.NewObjectCountEvaluator(gvr.GroupResource(), generic.ListResourceUsingListerFunc(lister, gvr), ""))
		}
		source, err := c.Informers.ForResource(gvr)
		if err != nil {
			return undo, nil, fmt.Errorf("watching %s: %w", gvr.Resource, err)
		}
		informer := source.Informer()
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    c.added,
			UpdateFunc: c.updated,
			DeleteFunc: c.deleted,
		})
		if err != nil {
			return undo, nil, fmt.Errorf("watching %s: %w", gvr.Resource, err)
		}
		removals = append(removals, func() { _ = informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSynced)
	}
	return undo, synced, nil
}

// settle is how long after an object came its quotas are counted again.
// Admission has charged it already, unless the server learnt of the quota at
// that very moment; a burst of objects is worth one count.
const settle = time.Second

func (c *controller) added(obj any, initial bool) {
	if q, ok := obj.(*corev1.ResourceQuota); ok {
		c.queue.Add(keyOf(q))
	}
	if !initial {
		c.eachQuotaOf(obj, func(key types.NamespacedName) { c.queue.AddAfter(key, settle) })
	}
}

func keyOf(q *corev1.ResourceQuota) types.NamespacedName {
	return types.NamespacedName{Namespace: q.Namespace, Name: q.Name}
}

func (c *controller) updated(before, after any) {
	if now, ok := after.(*corev1.ResourceQuota); ok {
		// Somebody else may have written limits into the status.
		if was, ok := before.(*corev1.ResourceQuota); ok && (!equality.Semantic.DeepEqual(was.Spec, now.Spec) || !quotav1.Equals(now.Status.Hard, now.Spec.Hard)) {
			c.queue.Add(keyOf(now))
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
		return ok && (ended(now) && !ended(was) || !equality.Semantic.DeepEqual(was.Spec.Containers, now.Spec.Containers))
	case *corev1.Service:
		was, ok := before.(*corev1.Service)
		return ok && !equality.Semantic.DeepEqual(quota.ServiceUsage(was), quota.ServiceUsage(now))
	case *corev1.PersistentVolumeClaim:
		was, ok := before.(*corev1.PersistentVolumeClaim)
		return ok && !equality.Semantic.DeepEqual(quota.ClaimUsage(was), quota.ClaimUsage(now))
	}
	return false
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

func (c *controller) deleted(obj any) {
	if last, unseen := obj.(cache.DeletedFinalStateUnknown); unseen {
		obj = last.Obj
	}
	c.eachQuotaOf(obj, c.queue.Add)
}

// eachQuotaOf calls do for the quotas of an object's namespace.
func (c *controller) eachQuotaOf(obj any, do func(types.NamespacedName)) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	quotas, err := c.quotas.ResourceQuotas(object.GetNamespace()).List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range quotas {
		do(keyOf(q))
	}
}

func (c *controller) next(ctx context.Context) bool {
	item, stopped := c.queue.Get()
	if stopped {
		return false
	}
	defer c.queue.Done(item)
	if err := c.count(ctx, item); err != nil {
		c.Log.Warn("counting quota; will try again", "quota", item, "err", err)
		c.queue.AddRateLimited(item)
		return true
	}
	c.queue.Forget(item)
	return true
}

func (c *controller) count(ctx context.Context, item types.NamespacedName) error {
	q, err := c.quotas.ResourceQuotas(item.Namespace).Get(item.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading quota %s: %w", item, err)
	}
	used, err := quotav1.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, c.registry, q.Spec.ScopeSelector)
	if err != nil {
		return fmt.Errorf("counting for quota %s: %w", item, err)
	}
	body, err := statusPatch(q, used)
	if err != nil || body == nil {
		return err
	}
	_, err = c.Client.CoreV1().ResourceQuotas(q.Namespace).Patch(ctx, q.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the status of quota %s: %w", item, err)
	}
	c.Journal.Append(journal.Record{
		Time: c.Now(), Part: "quota", Object: journal.Ref{Kind: "ResourceQuota", Namespace: q.Namespace, Name: q.Name, UID: string(q.UID)},
		Decision: "counted usage again", Because: []journal.Fact{{Name: "used", Value: fmt.Sprint(quotaText(used))}},
	})
	return nil
}

func quotaText(list corev1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, quantity := range list {
		out[string(name)] = quantity.String()
	}
	return out
}

// statusPatch brings the status to the spec's limits and this usage; nil when
// it is there already. It holds only for the quota as it was read: admission
// adds to the same numbers.
func statusPatch(q *corev1.ResourceQuota, used corev1.ResourceList) ([]byte, error) {
	// Names nothing counts are limited all the same, at zero used.
	all := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		all[name] = used[name]
	}
	if quotav1.Equals(q.Status.Hard, q.Spec.Hard) && quotav1.Equals(q.Status.Used, all) {
		return nil, nil
	}
	status := map[string]any{"hard": withRemovals(q.Status.Hard, q.Spec.Hard), "used": withRemovals(q.Status.Used, all)}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": q.UID, "resourceVersion": q.ResourceVersion}, "status": status,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the status of quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	return body, nil
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
