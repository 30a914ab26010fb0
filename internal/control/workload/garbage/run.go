package garbage

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

type reconciler struct {
	controller.Env
	metadata  metadata.Interface
	discovery discovery.DiscoveryInterface
	queue     *controller.Queue

	mu    sync.Mutex
	graph *graph
	// kinds maps what owner references name to resources.
	kinds map[schema.GroupVersionKind]resource
	// watched are the resources with a running feed, or nil for shared caches.
	watched map[schema.GroupVersionResource]context.CancelFunc
	feeds   sync.WaitGroup
	// changed wakes discovery when the set of resources may have changed.
	changed chan struct{}
}

type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

// ignored resources never own and are never owned in a way that matters.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
}

const (
	// startAfter is how long after a start the bare watches begin.
	startAfter = 2 * time.Second
	// rediscover is how often new resources are looked for in any case; a
	// change of a CustomResourceDefinition or APIService has it done after
	// servedAfter.
	rediscover  = 5 * time.Minute
	servedAfter = time.Second
)

// defines are the resources whose objects define resources.
var defines = map[string]bool{"customresourcedefinitions": true, "apiservices": true}

// Run collects garbage until the context ends.
func Run(ctx context.Context, e controller.Env, disc discovery.DiscoveryInterface) error {
	c := &reconciler{Env: e, metadata: e.Metadata, discovery: disc, queue: controller.NewQueue(), graph: newGraph(),
		kinds: map[schema.GroupVersionKind]resource{}, watched: map[schema.GroupVersionResource]context.CancelFunc{},
		changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	defer c.feeds.Wait()
	defer cancel()
	var shared []cache.DoneChecker
	for gvr, inf := range sharedInformers(e.Informers) {
		done, err := c.shared(gvr, inf)
		if err != nil {
			return err
		}
		shared = append(shared, done)
		c.watched[gvr] = nil
	}
	if err := e.Synced(ctx, shared...); err != nil {
		return nil
	}
	// The watches of everything else wait until the rush of a start is over.
	select {
	case <-time.After(startAfter):
	case <-ctx.Done():
		return nil
	}
	first, err := c.discover(ctx)
	if err != nil {
		e.Log.Warn("some resources could not be discovered", "err", err)
	}
	for _, done := range first {
		select {
		case <-done:
		case <-ctx.Done():
			return nil
		}
	}
	c.mu.Lock()
	look := c.graph.Synced()
	c.mu.Unlock()
	c.enqueueAll(look)
	c.feeds.Go(func() { c.rediscover(ctx) })
	return e.Run(ctx, c.queue, 20, c.sync)
}

// enqueueAll enqueues objects by UID.
func (c *reconciler) enqueueAll(uids []types.UID) {
	for _, u := range uids {
		c.queue.Add(string(u))
	}
}

func (c *reconciler) seen(id id, m metav1.Object, gone bool) {
	c.mu.Lock()
	var look []types.UID
	if gone {
		look = c.graph.Removed(id.UID)
	} else {
		look = c.graph.Observe(id, m)
	}
	c.mu.Unlock()
	c.enqueueAll(look)
	if defines[id.Resource.Resource] {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// shared feeds the graph from an informer that exists anyway.
func (c *reconciler) shared(gvr schema.GroupVersionResource, inf cache.SharedIndexInformer) (cache.DoneChecker, error) {
	handle := func(o any, gone bool) {
		if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		if m, ok := o.(metav1.Object); ok {
			c.seen(id{gvr, m.GetNamespace(), m.GetName(), m.GetUID()}, m, gone)
		}
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { handle(o, false) },
		UpdateFunc: func(_, o any) { handle(o, false) },
		DeleteFunc: func(o any) { handle(o, true) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", gvr.Resource, err)
	}
	return reg.HasSyncedChecker(), nil
}

func (c *reconciler) rediscover(ctx context.Context) {
	for {
		wait := rediscover
		select {
		case <-c.changed:
			wait = servedAfter
		default:
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.changed:
			timer.Reset(servedAfter)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		if _, err := c.discover(ctx); err != nil {
			c.Log.Warn("some resources could not be discovered", "err", err)
		}
	}
}

// discover starts a feed for every resource that has none, and returns, per
// new feed, a channel that closes once it has listed what exists.
func (c *reconciler) discover(ctx context.Context) ([]<-chan struct{}, error) {
	lists, err := discovery.ServerPreferredResources(c.discovery)
	if len(lists) == 0 && err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var started []<-chan struct{}
	served := map[schema.GroupVersionResource]bool{}
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, r := range l.APIResources {
			gvr := gv.WithResource(r.Name)
			c.kinds[gv.WithKind(r.Kind)] = resource{gvr, r.Namespaced}
			served[gvr] = true
			if _, ok := c.watched[gvr]; ok || !has(r.Verbs, "list", "watch", "delete") || ignored[gvr.GroupResource()] {
				continue
			}
			feedCtx, cancel := context.WithCancel(ctx)
			c.watched[gvr] = cancel
			done := make(chan struct{})
			started = append(started, done)
			f := &feed{gvr: gvr, api: c.metadata.Resource(gvr), seen: c.seen, listed: done, log: c.Log, known: map[types.UID]id{}}
			c.feeds.Go(func() { f.run(feedCtx) })
		}
	}
	for gvr, stop := range c.watched {
		if err == nil && stop != nil && !served[gvr] {
			stop()
			delete(c.watched, gvr)
		}
	}
	return started, err
}

func has(verbs []string, want ...string) bool {
	for _, w := range want {
		found := false
		for _, v := range verbs {
			found = found || v == w
		}
		if !found {
			return false
		}
	}
	return true
}

func (c *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	uid := types.UID(key)
	for range 4 { // owners may have owners' news meanwhile; more comes as events
		c.mu.Lock()
		v := c.graph.Plan(uid)
		c.mu.Unlock()
		if v.Act != FindOwners {
			return 0, c.perform(ctx, v)
		}
		for _, r := range v.Unknown {
			if err := c.find(ctx, v.ID, r); err != nil {
				return 0, err
			}
		}
	}
	return 0, fmt.Errorf("looking at %s: its owners keep changing", key)
}

// find reads an owner live. One that is gone, or was replaced by another
// object of its name, is absent; one of a kind not served is an error, since
// nothing may be deleted on a guess.
func (c *reconciler) find(ctx context.Context, dependent id, ref metav1.OwnerReference) error {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	c.mu.Lock()
	r, ok := c.kinds[gvk]
	if !ok {
		for k, x := range c.kinds { // another version of the same kind
			if k.Group == gvk.Group && k.Kind == gvk.Kind {
				r, ok = x, true
			}
		}
	}
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s %s/%s: no resource serves its owner's kind %s", dependent.Resource.Resource, dependent.Namespace,
			dependent.Name, gvk)
	}
	ns := ""
	if r.namespaced {
		if dependent.Namespace == "" {
			c.Log.Warn("a cluster-scoped object names a namespaced owner; it is never collected", "resource", dependent.Resource.Resource,
				"name", dependent.Name, "owner", ref.Name)
			return nil
		}
		ns = dependent.Namespace
	}
	got, err := c.metadata.Resource(r.GroupVersionResource).Namespace(ns).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.absent(ref.UID)
	case err != nil:
		return fmt.Errorf("reading owner %s %s/%s: %w", r.Resource, ns, ref.Name, err)
	case got.UID != ref.UID:
		c.absent(ref.UID)
	default:
		c.mu.Lock()
		look := c.graph.Resolve(id{r.GroupVersionResource, ns, got.Name, got.UID}, got)
		c.mu.Unlock()
		c.enqueueAll(look)
	}
	return nil
}

func (c *reconciler) absent(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.graph.Absent(uid)
}

func (c *reconciler) perform(ctx context.Context, v verdict) error {
	obj := &metav1.ObjectMeta{Namespace: v.ID.Namespace, Name: v.ID.Name, UID: v.ID.UID}
	if v.Act != Nothing && v.Act != DeleteDependents {
		c.Note(v.ID.Resource.Resource, obj, string(v.Act), journal.Fact{Name: "policy", Value: string(v.Policy)})
	}
	switch v.Act {
	case Delete:
		opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.ID.UID}, PropagationPolicy: &v.Policy}
		if v.Version != "" {
			opts.Preconditions.ResourceVersion = &v.Version
		}
		err := c.api(v.ID).Delete(ctx, v.ID.Name, opts)
		if apierrors.IsNotFound(err) {
			c.seen(v.ID, nil, true)
			return nil
		}
		return wrap(err, v)
	case Unreference:
		return wrap(c.patchMetadata(ctx, v.ID, func(m *metav1.PartialObjectMetadata) *kube.Change {
			return unreferenced(m, v.UIDs)
		}), v)
	case Unblock:
		return wrap(c.patchMetadata(ctx, v.ID, func(m *metav1.PartialObjectMetadata) *kube.Change {
			return unblocked(m, v.UIDs)
		}), v)
	case Unfinalize:
		return wrap(c.unfinalize(ctx, v.ID, v.Finalizer), v)
	case OrphanDependents:
		err := podcontrol.All(0, len(v.Dependents), func(i int) error {
			return c.patchMetadata(ctx, v.Dependents[i], func(m *metav1.PartialObjectMetadata) *kube.Change {
				return unreferenced(m, []types.UID{v.ID.UID})
			})
		})
		if err == nil {
			err = c.unfinalize(ctx, v.ID, metav1.FinalizerOrphanDependents)
		}
		return wrap(err, v)
	case DeleteDependents:
		for _, d := range v.Dependents {
			c.queue.Add(string(d.UID))
		}
	}
	return nil
}

func wrap(err error, v verdict) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %s/%s: %w", v.Act, v.ID.Resource.Resource, v.ID.Namespace, v.ID.Name, err)
}

func (c *reconciler) api(id id) metadata.ResourceInterface {
	return c.metadata.Resource(id.Resource).Namespace(id.Namespace)
}

func unreferenced(m *metav1.PartialObjectMetadata, owners []types.UID) *kube.Change {
	keep := []metav1.OwnerReference{}
	for _, r := range m.OwnerReferences {
		drop := false
		for _, o := range owners {
			drop = drop || r.UID == o
		}
		if !drop {
			keep = append(keep, r)
		}
	}
	if len(keep) == len(m.OwnerReferences) {
		return nil
	}
	return &kube.Change{Owners: &keep}
}

// unblocked lets owners go before the object.
func unblocked(m *metav1.PartialObjectMetadata, owners []types.UID) *kube.Change {
	refs, changed := slices.Clone(m.OwnerReferences), false
	for i := range refs {
		if slices.Contains(owners, refs[i].UID) && blocks(refs[i]) {
			no := false
			refs[i].BlockOwnerDeletion, changed = &no, true
		}
	}
	if !changed {
		return nil
	}
	return &kube.Change{Owners: &refs}
}

func (c *reconciler) unfinalize(ctx context.Context, id id, finalizer string) error {
	return c.patchMetadata(ctx, id, func(m *metav1.PartialObjectMetadata) *kube.Change {
		keep := []string{}
		for _, f := range m.Finalizers {
			if f != finalizer {
				keep = append(keep, f)
			}
		}
		if len(keep) == len(m.Finalizers) {
			return nil
		}
		return &kube.Change{Finalizers: &keep}
	})
}

// patchMetadata reads an object live and patches its metadata, guarded by its version.
// An object that is gone, or another one by now, is fine.
func (c *reconciler) patchMetadata(ctx context.Context, id id, change func(*metav1.PartialObjectMetadata) *kube.Change) error {
	m, err := c.api(id).Get(ctx, id.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && m.UID != id.UID) {
		return nil
	}
	if err != nil {
		return err
	}
	patch := change(m)
	if patch == nil {
		return nil
	}
	_, err = kube.Patch(ctx, c.api(id), m, kube.Unchanged, *patch)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
