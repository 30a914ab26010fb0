package statefulset

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/workload/history"
	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

type reconciler struct {
	controller.Env
	pods      *podcontrol.Pods
	queue     *controller.Queue
	list      appslisters.StatefulSetLister
	claims    corelisters.PersistentVolumeClaimLister
	revisions cache.SharedIndexInformer
}

// Run keeps StatefulSets until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	apps := e.Informers.Apps().V1()
	claims := e.Informers.Core().V1().PersistentVolumeClaims()
	pods, err := podcontrol.NewPods(e, "statefulset-controller")
	if err != nil {
		return err
	}
	c := &reconciler{Env: e, pods: pods, queue: controller.NewQueue(), list: apps.StatefulSets().Lister(), claims: claims.Lister(),
		revisions: apps.ControllerRevisions().Informer()}
	if err := podcontrol.IndexOwners(c.revisions); err != nil {
		return err
	}
	a, err1 := controller.On(ctx, apps.StatefulSets().Informer(), func(_, s *appsv1.StatefulSet, _ bool) { c.queue.Add(controller.Key(s)) })
	b, err2 := pods.Watch(ctx, func(ref *metav1.OwnerReference, p *v1.Pod) {
		if ref.Kind == "StatefulSet" {
			c.queue.Add(p.Namespace + "/" + ref.Name)
		}
	}, c.orphan)
	r, err3 := controller.On(ctx, c.revisions, func(_, _ *appsv1.ControllerRevision, _ bool) {})
	v, err4 := controller.On(ctx, claims.Informer(), func(_, _ *v1.PersistentVolumeClaim, _ bool) {})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, r, v); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 8, controller.Existing(apps.StatefulSets().Informer().GetIndexer(), c.sync))
}

func (c *reconciler) orphan(p *v1.Pod) {
	all, err := c.list.StatefulSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if _, ok := Ordinal(s.Name, p.Name); ok {
			c.queue.Add(controller.Key(s))
		}
	}
}

func (c *reconciler) sync(ctx context.Context, set *appsv1.StatefulSet) (time.Duration, error) {
	api := c.Client.AppsV1().StatefulSets(set.Namespace)
	sel, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || sel.Empty() {
		return 0, nil
	}
	pods, err := c.pods.Claimed(ctx, set, podcontrol.Owner(set, "apps/v1", "StatefulSet"), sel, func(ctx context.Context) (metav1.Object,
		error) {
		return api.Get(ctx, set.Name, metav1.GetOptions{})
	})
	if err != nil {
		return 0, err
	}
	revs := podcontrol.Indexed[*appsv1.ControllerRevision](c.revisions, podcontrol.ByOwner, string(set.UID))
	update, collisions, err := c.history(ctx, set, revs, pods)
	if err != nil {
		return 0, err
	}
	// The current revision is what the status says, as long as it exists.
	current := update
	for _, r := range revs {
		if r.Name == set.Status.CurrentRevision {
			current = r
		}
	}
	plan := Make(Input{Set: set, Pods: pods, Current: current.Name, Update: update.Name, Now: time.Now()})
	plan.Status.CollisionCount = collisions
	failed := errors.Join(c.retain(ctx, set, pods), c.perform(ctx, set, plan, current, update))
	_, _, err = kube.PatchStatus(ctx, api, set, set.Status, plan.Status)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return plan.Wake, errors.Join(failed, err)
}

func (c *reconciler) history(ctx context.Context, set *appsv1.StatefulSet, revs []*appsv1.ControllerRevision,
	pods []*v1.Pod) (*appsv1.ControllerRevision, *int32, error) {
	used := map[string]bool{set.Status.CurrentRevision: true, set.Status.UpdateRevision: true}
	for _, p := range pods {
		used[revision(p)] = true
	}
	o := history.Owner{Object: set, Ref: podcontrol.Owner(set, "apps/v1", "StatefulSet"), Template: &set.Spec.Template,
		Labels: set.Spec.Template.Labels,
		Limit:  set.Spec.RevisionHistoryLimit, Collision: set.Status.CollisionCount}
	count := set.Status.CollisionCount
	for range 5 {
		got, collision, err := history.Perform(ctx, c.Client, o, history.Make(o, revs, used))
		if !collision {
			return got, count, err
		}
		n := int32(1)
		if count != nil {
			n += *count
		}
		count, o.Collision = &n, &n
	}
	return nil, count, fmt.Errorf("stateful set %s: no free name for its revision", controller.Key(set))
}

func (c *reconciler) perform(ctx context.Context, set *appsv1.StatefulSet, plan Plan, current, update *appsv1.ControllerRevision) error {
	if len(plan.Because) > 0 {
		c.Note("StatefulSet", set, fmt.Sprintf("creating %d and deleting %d pods", len(plan.Create), len(plan.Delete)), plan.Because...)
	}
	for _, p := range plan.Ended {
		if p.Status.Phase == v1.PodFailed {
			c.pods.Recorder.Eventf(set, v1.EventTypeWarning, "RecreatingFailedPod", "StatefulSet %s/%s is recreating failed Pod %s",
				set.Namespace, set.Name, p.Name)
		} else {
			c.pods.Recorder.Eventf(set, v1.EventTypeNormal, "RecreatingTerminatedPod", "StatefulSet %s/%s is recreating terminated Pod %s",
				set.Namespace, set.Name, p.Name)
		}
	}
	_, err := podcontrol.Batch(len(plan.Create), func(i int) error {
		r := update
		if plan.Create[i].Revision == current.Name {
			r = current
		}
		return c.create(ctx, set, plan.Create[i], r)
	})
	return errors.Join(err, podcontrol.All(0, len(plan.Delete), func(i int) error {
		return c.pods.Delete(ctx, set, plan.Delete[i])
	}))
}

// create makes the claims of an ordinal, then its pod.
func (c *reconciler) create(ctx context.Context, set *appsv1.StatefulSet, n Creation, r *appsv1.ControllerRevision) error {
	if c.pods.Ending(set.Namespace) {
		return nil
	}
	t, err := history.Template(r)
	if err != nil {
		return err
	}
	for _, claim := range claims(set, n.Ordinal) {
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(claim.Name)
		if err == nil {
			if have.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s-%d of stateful set %s waits for its claim %s to be gone", set.Name, n.Ordinal,
					controller.Key(set), claim.Name)
			}
			continue
		}
		_, err = c.Client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			c.pods.Recorder.Eventf(set, v1.EventTypeWarning, "FailedCreate",
				"create Claim %s for Pod %s-%d in StatefulSet %s failed error: %v", claim.Name, set.Name, n.Ordinal, set.Name, err)
			return fmt.Errorf("creating claim %s: %w", claim.Name, err)
		}
		if err == nil {
			c.pods.Recorder.Eventf(set, v1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s-%d in StatefulSet %s success",
				claim.Name, set.Name, n.Ordinal, set.Name)
		}
	}
	pod := newPod(set, t, n)
	got, err := c.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.pods.Overlay.Created(set.UID, got)
		c.pods.Recorder.Eventf(set, v1.EventTypeNormal, "SuccessfulCreate", "create Pod %s in StatefulSet %s successful", pod.Name,
			set.Name)
		return nil
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("pod %s of stateful set %s exists and is not seen yet, or is another's", pod.Name, controller.Key(set))
	}
	c.pods.Recorder.Eventf(set, v1.EventTypeWarning, "FailedCreate", "create Pod %s in StatefulSet %s failed error: %v", pod.Name, set.Name,
		err)
	return fmt.Errorf("creating pod %s: %w", pod.Name, err)
}

// retain keeps the owner references of claims in line with the retention
// policy, before any pod is deleted.
func (c *reconciler) retain(ctx context.Context, set *appsv1.StatefulSet, pods []*v1.Pod) error {
	if len(set.Spec.VolumeClaimTemplates) == 0 || set.Spec.PersistentVolumeClaimRetentionPolicy == nil {
		return nil
	}
	start, replicas := 0, 1
	if set.Spec.Replicas != nil {
		replicas = int(*set.Spec.Replicas)
	}
	if set.Spec.Ordinals != nil {
		start = int(set.Spec.Ordinals.Start)
	}
	for _, pod := range pods {
		n, ok := Ordinal(set.Name, pod.Name)
		if !ok {
			continue
		}
		condemned := n < start || n >= start+replicas
		for i := range set.Spec.VolumeClaimTemplates {
			claim, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(claimName(set, i, n))
			if err != nil || claim.DeletionTimestamp != nil {
				continue
			}
			want := wantOwners(set, pod, claim.OwnerReferences, condemned)
			if equality.Semantic.DeepEqual(want, claim.OwnerReferences) || (len(want) == 0 && len(claim.OwnerReferences) == 0) {
				continue
			}
			if want == nil {
				want = []metav1.OwnerReference{}
			}
			_, err = kube.Patch(ctx, c.Client.CoreV1().PersistentVolumeClaims(set.Namespace), claim, kube.Unchanged,
				kube.Change{Owners: &want})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("setting the owners of claim %s: %w", controller.Key(claim), err)
			}
		}
	}
	return nil
}
