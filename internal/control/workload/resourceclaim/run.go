package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	dra "k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Keys of the queue say of which kind they are.
const (
	podKey   = "pod:"
	claimKey = "claim:"
)

// byTemplate indexes pods that wait for a claim by the template's key.
const byTemplate = "berth-claim-template"

type reconciler struct {
	controller.Env
	q         *controller.Queue
	pods      corelisters.PodLister
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
	owned     cache.SharedIndexInformer // claims, by their controller
	events    record.EventRecorder

	mu sync.Mutex
	// made remembers, by pod and by the pod's name of it, what this process
	// made while the pod's status does not say so yet.
	made map[types.UID]map[string]*resourceapi.ResourceClaim
}

// Run makes and tidies claims until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	core, api := e.Informers.Core().V1(), e.Informers.Resource().V1()
	c := &reconciler{Env: e, q: controller.NewQueue(), pods: core.Pods().Lister(), claims: api.ResourceClaims().Lister(),
		templates: api.ResourceClaimTemplates().Lister(), owned: api.ResourceClaims().Informer(), events: e.Recorder("resource_claim"),
		made: map[types.UID]map[string]*resourceapi.ResourceClaim{}}
	waiting := core.Pods().Informer()
	if err := errors.Join(podcontrol.IndexOwners(c.owned), kube.Index(waiting, cache.Indexers{byTemplate: waitsFor})); err != nil {
		return err
	}
	seenPods, err1 := controller.On(ctx, waiting, func(_, p *v1.Pod, gone bool) { c.podChanged(p, gone) })
	seenClaims, err2 := controller.On(ctx, c.owned, func(_, claim *resourceapi.ResourceClaim, gone bool) { c.claimChanged(claim, gone) })
	seenTemplates, err3 := controller.On(ctx, api.ResourceClaimTemplates().Informer(), func(_, t *resourceapi.ResourceClaimTemplate,
		gone bool) {
		for _, p := range podcontrol.Indexed[*v1.Pod](waiting, byTemplate, controller.Key(t)) {
			c.q.Add(podKey + controller.Key(p))
		}
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.Synced(ctx, seenPods, seenClaims, seenTemplates); err != nil {
		return nil
	}
	return e.Run(ctx, c.q, 4, func(ctx context.Context, key string) (time.Duration, error) {
		if name, ok := strings.CutPrefix(key, podKey); ok {
			return 0, c.syncPod(ctx, name)
		}
		return 0, c.syncClaim(ctx, strings.TrimPrefix(key, claimKey))
	})
}

// waitsFor is the index of pods by the templates they have no claim of.
func waitsFor(obj any) ([]string, error) {
	p, ok := obj.(*v1.Pod)
	if !ok {
		return nil, nil
	}
	var out []string
	for _, w := range missing(p, nil) {
		out = append(out, p.Namespace+"/"+w.Template)
	}
	return out, nil
}

func (c *reconciler) podChanged(p *v1.Pod, gone bool) {
	if len(p.Spec.ResourceClaims) == 0 {
		return
	}
	if !gone {
		c.q.Add(podKey + controller.Key(p))
	}
	if gone || len(missing(p, nil)) == 0 {
		c.mu.Lock()
		delete(c.made, p.UID)
		c.mu.Unlock()
	}
	if !gone && !ended(p) {
		return
	}
	for name := range dra.PodClaims(p) {
		c.q.Add(claimKey + p.Namespace + "/" + name)
	}
	for _, claim := range podcontrol.Indexed[*resourceapi.ResourceClaim](c.owned, podcontrol.ByOwner, string(p.UID)) {
		c.q.Add(claimKey + controller.Key(claim))
	}
}

func (c *reconciler) claimChanged(claim *resourceapi.ResourceClaim, gone bool) {
	if !gone {
		c.q.Add(claimKey + controller.Key(claim))
	}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.Kind == "Pod" {
		c.q.Add(podKey + claim.Namespace + "/" + owner.Name)
	}
}

func (c *reconciler) syncPod(ctx context.Context, key string) error {
	ns, name := controller.Split(key)
	p, err := c.pods.Pods(ns).Get(name)
	if err != nil {
		return nil // gone
	}
	if err := c.fromTemplates(ctx, p); err != nil {
		return err
	}
	find := func(name string) *resourceapi.ResourceClaim {
		claim, err := c.claims.ResourceClaims(ns).Get(name)
		if err != nil {
			return nil
		}
		return claim
	}
	for _, claim := range toReserve(p, find) {
		_, err := kube.Patch(ctx, c.Client.ResourceV1().ResourceClaims(ns), claim, kube.Unchanged,
			kube.Change{Status: map[string]any{"reservedFor": reserved(claim, p)}, Subresource: "status"})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("reserving claim %s for pod %s: %w", controller.Key(claim), key, err)
		}
	}
	return nil
}

// fromTemplates makes what a pod misses and names it in the pod's status.
func (c *reconciler) fromTemplates(ctx context.Context, p *v1.Pod) error {
	missing := missing(p, podcontrol.Indexed[*resourceapi.ResourceClaim](c.owned, podcontrol.ByOwner, string(p.UID)))
	if len(missing) == 0 {
		return nil
	}
	var made []map[string]any
	var errs []error
	for _, w := range missing {
		claim := w.Have
		if claim == nil {
			var err error
			if claim, err = c.make(ctx, p, w); err != nil {
				c.events.Eventf(p, v1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", w.Name, err)
				errs = append(errs, fmt.Errorf("claim %s of pod %s: %w", w.Name, controller.Key(p), err))
				continue
			}
			c.Note("Pod", p, "made its resource claim "+claim.Name, journal.Fact{Name: "template", Value: w.Template})
		}
		made = append(made, map[string]any{"name": w.Name, "resourceClaimName": claim.Name})
	}
	if len(made) > 0 {
		change := kube.Change{Status: map[string]any{"resourceClaimStatuses": made}, Subresource: "status", Strategic: true}
		if _, err := kube.Patch(ctx, c.Client.CoreV1().Pods(p.Namespace), p, kube.SameObject, change); err != nil &&
			!apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("naming the claims of pod %s: %w", controller.Key(p), err))
		}
	}
	return errors.Join(errs...)
}

// make makes one claim, unless it did so already and the cache does not show
// it yet.
func (c *reconciler) make(ctx context.Context, p *v1.Pod, w wanted) (*resourceapi.ResourceClaim, error) {
	c.mu.Lock()
	have := c.made[p.UID][w.Name]
	c.mu.Unlock()
	if have != nil {
		return have, nil
	}
	template, err := c.templates.ResourceClaimTemplates(p.Namespace).Get(w.Template)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", w.Template, err)
	}
	claim, err := c.Client.ResourceV1().ResourceClaims(p.Namespace).Create(ctx, fromTemplate(p, w.Name, template), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[p.UID] == nil {
		c.made[p.UID] = map[string]*resourceapi.ResourceClaim{}
	}
	c.made[p.UID][w.Name] = claim
	return claim, nil
}

func (c *reconciler) syncClaim(ctx context.Context, key string) error {
	ns, name := controller.Split(key)
	claim, err := c.claims.ResourceClaims(ns).Get(name)
	if err != nil {
		return nil // gone
	}
	var unsure error
	t := planCleanup(claim, func(name string, uid types.UID) *v1.Pod {
		p, err := c.pod(ctx, ns, name, uid)
		if err != nil {
			unsure = err
		}
		return p
	})
	if unsure != nil {
		return fmt.Errorf("looking for the users of claim %s: %w", key, unsure)
	}
	return c.cleanUp(ctx, claim, t)
}

// pod finds a pod in the cache, or makes sure that there is none.
func (c *reconciler) pod(ctx context.Context, ns, name string, uid types.UID) (*v1.Pod, error) {
	if p, err := c.pods.Pods(ns).Get(name); err == nil && p.UID == uid {
		return p, nil
	}
	p, err := c.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && p.UID != uid:
		return nil, nil
	}
	return p, err
}

// tidy writes; each write fails if the claim has changed since it was read.
func (c *reconciler) cleanUp(ctx context.Context, claim *resourceapi.ResourceClaim, t cleanup) error {
	api := c.Client.ResourceV1().ResourceClaims(claim.Namespace)
	key := controller.Key(claim)
	var err error
	if t.Status {
		status := map[string]any{"reservedFor": t.Users}
		if t.Deallocate {
			status["allocation"], status["devices"] = nil, nil
			c.Note("ResourceClaim", claim, "gave its devices back", journal.Fact{Name: "cause", Value: t.Because})
		}
		if claim, err = kube.Patch(ctx, api, claim, kube.Unchanged, kube.Change{Status: status, Subresource: "status"}); err != nil {
			return gone(err, "taking users off claim "+key)
		}
	}
	if t.Unprotect {
		rest := slices.DeleteFunc(slices.Clone(claim.Finalizers), func(f string) bool { return f == resourceapi.Finalizer })
		if claim, err = kube.Patch(ctx, api, claim, kube.Unchanged, kube.Change{Finalizers: &rest}); err != nil {
			return gone(err, "letting claim "+key+" go")
		}
	}
	if t.Delete {
		c.Note("ResourceClaim", claim, "deleted", journal.Fact{Name: "cause", Value: t.Because})
		return gone(api.Delete(ctx, claim.Name, kube.SameUID(claim)), "deleting claim "+key)
	}
	return nil
}

func gone(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
