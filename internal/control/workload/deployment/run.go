package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

type reconciler struct {
	controller.Env
	events record.EventRecorder
	queue  *controller.Queue
	list   appslisters.DeploymentLister
	sets   cache.SharedIndexInformer
	setsBy appslisters.ReplicaSetLister
	pods   cache.SharedIndexInformer
}

// Run rolls Deployments out until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	apps := e.Informers.Apps().V1()
	c := &reconciler{Env: e, events: e.Recorder("deployment-controller"), queue: controller.NewQueue(),
		list: apps.Deployments().Lister(), sets: apps.ReplicaSets().Informer(), setsBy: apps.ReplicaSets().Lister(),
		pods: e.Informers.Core().V1().Pods().Informer()}
	if err := errors.Join(podcontrol.IndexOwners(c.sets), podcontrol.IndexOwners(c.pods)); err != nil {
		return err
	}
	a, err1 := controller.On(ctx, apps.Deployments().Informer(), func(_, d *appsv1.Deployment, _ bool) { c.queue.Add(controller.Key(d)) })
	b, err2 := controller.On(ctx, c.sets, c.setChanged)
	p, err3 := controller.On(ctx, c.pods, c.podChanged)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, p); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 8, controller.Existing(apps.Deployments().Informer().GetIndexer(), c.sync))
}

func (c *reconciler) setChanged(old, s *appsv1.ReplicaSet, gone bool) {
	for _, o := range []*appsv1.ReplicaSet{old, s} {
		if o == nil {
			continue
		}
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil && ref.Kind == "Deployment" {
			c.queue.Add(o.Namespace + "/" + ref.Name)
		}
	}
	if gone || metav1.GetControllerOfNoCopy(s) != nil {
		return
	}
	all, err := c.list.Deployments(s.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		if sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil && !sel.Empty() && sel.Matches(labels.Set(s.Labels)) {
			c.queue.Add(controller.Key(d))
		}
	}
}

// podChanged wakes a Recreate deployment when an old pod has ended: its set's
// status does not tell, as it never counts terminating pods.
func (c *reconciler) podChanged(_, p *v1.Pod, gone bool) {
	if !gone && !podutil.Terminal(p) {
		return
	}
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	s, err := c.setsBy.ReplicaSets(p.Namespace).Get(ref.Name)
	if err != nil {
		return
	}
	owner := metav1.GetControllerOfNoCopy(s)
	if owner == nil || owner.Kind != "Deployment" {
		return
	}
	if d, err := c.list.Deployments(p.Namespace).Get(owner.Name); err == nil &&
		d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.queue.Add(controller.Key(d))
	}
}

func (c *reconciler) sync(ctx context.Context, d *appsv1.Deployment) (time.Duration, error) {
	sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || sel.Empty() {
		c.events.Event(d, v1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	sets, err := c.claim(ctx, d, sel)
	if err != nil {
		return 0, err
	}
	in := input{D: d, Sets: sets, Unfinished: map[types.UID]int{}, Now: time.Now()}
	for _, s := range sets {
		for _, p := range podcontrol.Indexed[*v1.Pod](c.pods, podcontrol.ByOwner, string(s.UID)) {
			if !podutil.Terminal(p) {
				in.Unfinished[s.UID]++
			}
		}
	}
	plan := makePlan(in)
	if len(plan.Steps) > 0 {
		c.Note("Deployment", d, fmt.Sprintf("changed %d replica sets", len(plan.Steps)), plan.Because...)
	}
	for i := range plan.Steps {
		if err := c.perform(ctx, d, &plan.Steps[i], &plan.Status); err != nil {
			return 0, errors.Join(err, c.writeStatus(ctx, d, plan.Status))
		}
	}
	if plan.Revision != "" && d.Annotations[revisionAnnotation] != plan.Revision {
		updated, err := kube.Patch(ctx, c.Client.AppsV1().Deployments(d.Namespace), d, kube.SameObject,
			kube.Change{Annotations: map[string]*string{revisionAnnotation: &plan.Revision}})
		if err != nil {
			return 0, fmt.Errorf("writing the revision of %s: %w", controller.Key(d), err)
		}
		// The status refers to the version it was computed from; our own
		// annotation must not make it fail.
		fresh := *d
		fresh.ResourceVersion = updated.ResourceVersion
		if updated.Generation == d.Generation+1 || updated.Generation == d.Generation {
			d = &fresh
		}
	}
	return plan.Wake, c.writeStatus(ctx, d, plan.Status)
}

func (c *reconciler) writeStatus(ctx context.Context, d *appsv1.Deployment, st appsv1.DeploymentStatus) error {
	_, _, err := kube.PatchStatus(ctx, c.Client.AppsV1().Deployments(d.Namespace), d, d.Status, st)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the status of %s: %w", controller.Key(d), err)
	}
	return nil
}

// claim returns the sets of a Deployment, adopting and releasing as needed.
func (c *reconciler) claim(ctx context.Context, d *appsv1.Deployment, sel labels.Selector) ([]*appsv1.ReplicaSet, error) {
	owned := podcontrol.Indexed[*appsv1.ReplicaSet](c.sets, podcontrol.ByOwner, string(d.UID))
	orphans := podcontrol.Indexed[*appsv1.ReplicaSet](c.sets, podcontrol.ByOrphan, d.Namespace)
	keep, adopt, release := podcontrol.Claim(d, sel, owned, orphans)
	api := c.Client.AppsV1().ReplicaSets(d.Namespace)
	if len(adopt) > 0 {
		err := podcontrol.StillThere(ctx, d, func(ctx context.Context) (metav1.Object, error) {
			return c.Client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		})
		if err != nil {
			return nil, err
		}
	}
	for _, s := range adopt {
		got, err := kube.Patch(ctx, api, s, kube.Unchanged, podcontrol.Adopt(s, podcontrol.Owner(d, "apps/v1", "Deployment")))
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("adopting replica set %s: %w", controller.Key(s), err)
		}
		if err == nil {
			keep = append(keep, got)
		}
	}
	for _, s := range release {
		_, err := kube.Patch(ctx, api, s, kube.Unchanged, podcontrol.Release(s, d.UID))
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("releasing replica set %s: %w", controller.Key(s), err)
		}
	}
	return keep, nil
}

func (c *reconciler) perform(ctx context.Context, d *appsv1.Deployment, s *step, st *appsv1.DeploymentStatus) error {
	api := c.Client.AppsV1().ReplicaSets(d.Namespace)
	switch s.Verb {
	case Create:
		return c.create(ctx, d, s, st)
	case Annotate:
		change := kube.Change{Annotations: kube.Texts(s.Annotations), Spec: applyappsv1.ReplicaSetSpec().WithMinReadySeconds(s.MinReady)}
		if _, err := kube.Patch(ctx, api, s.Set, kube.Unchanged, change); err != nil {
			return fmt.Errorf("annotating replica set %s: %w", controller.Key(s.Set), err)
		}
		return nil
	case Scale:
		from := sizeOf(s.Set)
		change := kube.Change{Annotations: kube.Texts(s.Annotations),
			Spec: applyappsv1.ReplicaSetSpec().WithReplicas(s.Replicas).WithMinReadySeconds(s.MinReady)}
		if _, err := kube.Patch(ctx, api, s.Set, kube.Unchanged, change); err != nil {
			return fmt.Errorf("scaling replica set %s to %d: %w", controller.Key(s.Set), s.Replicas, err)
		}
		c.scaled(d, s.Set.Name, from, s.Replicas)
		return nil
	default:
		if err := api.Delete(ctx, s.Set.Name, kube.SameUID(s.Set)); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting replica set %s: %w", controller.Key(s.Set), err)
		}
		return nil
	}
}

func (c *reconciler) scaled(d *appsv1.Deployment, name string, from, to int32) {
	if from == to {
		return
	}
	dir := "up"
	if to < from {
		dir = "down"
	}
	c.events.Eventf(d, v1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", dir, name, from, to)
}

// create makes the set; if its name is taken by something else, the collision
// count gives the next attempt another name.
func (c *reconciler) create(ctx context.Context, d *appsv1.Deployment, s *step, st *appsv1.DeploymentStatus) error {
	api := c.Client.AppsV1().ReplicaSets(d.Namespace)
	_, err := api.Create(ctx, s.Set, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.scaled(d, s.Set.Name, 0, s.Replicas)
		return nil
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		there, getErr := api.Get(ctx, s.Set.Name, metav1.GetOptions{})
		if getErr != nil {
			return fmt.Errorf("reading replica set %s, whose name is taken: %w", controller.Key(s.Set), getErr)
		}
		if ref := metav1.GetControllerOfNoCopy(there); ref != nil && ref.UID == d.UID && sameTemplate(&there.Spec.Template,
			&d.Spec.Template) {
			return nil // ours: the cache is behind
		}
		n := int32(1)
		if st.CollisionCount != nil {
			n = *st.CollisionCount + 1
		}
		st.CollisionCount = &n
		return fmt.Errorf("creating replica set %s: its name belongs to another object, trying another", controller.Key(s.Set))
	default:
		now := metav1.Now()
		remove(st, appsv1.DeploymentProgressing)
		st.Conditions = append(st.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: v1.ConditionFalse,
			Reason: "ReplicaSetCreateError", Message: fmt.Sprintf("Failed to create new replica set %q: %v", s.Set.Name, err),
			LastUpdateTime: now, LastTransitionTime: now})
		c.events.Eventf(d, v1.EventTypeWarning, "ReplicaSetCreateError", "Failed to create new replica set %q: %v", s.Set.Name, err)
		return fmt.Errorf("creating replica set %s: %w", controller.Key(s.Set), err)
	}
}
