package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

type reconciler struct {
	controller.Env
	queue   *controller.Queue
	budgets policylisters.PodDisruptionBudgetLister
}

// Run keeps budgets' status until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Policy().V1().PodDisruptionBudgets()
	apps, core := e.Informers.Apps().V1(), e.Informers.Core().V1()
	c := &reconciler{Env: e, queue: controller.NewQueue(), budgets: inf.Lister()}
	a, err1 := controller.On(ctx, inf.Informer(), func(_, b *policyv1.PodDisruptionBudget, _ bool) { c.queue.Add(controller.Key(b)) })
	b, err2 := controller.On(ctx, core.Pods().Informer(), func(old, p *v1.Pod, _ bool) { c.pod(old); c.pod(p) })
	// Owners' sizes decide about percentages; a change of size looks at the
	// budgets of its namespace.
	d, err3 := controller.On(ctx, apps.Deployments().Informer(), func(old, o *appsv1.Deployment, _ bool) {
		if old == nil || old.Generation != o.Generation {
			c.all(o.Namespace)
		}
	})
	r, err4 := controller.On(ctx, apps.ReplicaSets().Informer(), func(old, o *appsv1.ReplicaSet, _ bool) {
		if metav1.GetControllerOfNoCopy(o) == nil && (old == nil || old.Generation != o.Generation) {
			c.all(o.Namespace)
		}
	})
	s, err5 := controller.On(ctx, apps.StatefulSets().Informer(), func(old, o *appsv1.StatefulSet, _ bool) {
		if old == nil || old.Generation != o.Generation {
			c.all(o.Namespace)
		}
	})
	rc, err6 := controller.On(ctx, core.ReplicationControllers().Informer(), func(old, o *v1.ReplicationController, _ bool) {
		if old == nil || old.Generation != o.Generation {
			c.all(o.Namespace)
		}
	})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, d, r, s, rc); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 4, controller.Existing(inf.Informer().GetIndexer(), c.sync))
}

func (c *reconciler) list(ns string) []*policyv1.PodDisruptionBudget {
	l, err := c.budgets.PodDisruptionBudgets(ns).List(labels.Everything())
	if err != nil {
		return nil
	}
	return l
}

func (c *reconciler) all(ns string) {
	for _, b := range c.list(ns) {
		c.queue.Add(controller.Key(b))
	}
}

func (c *reconciler) pod(p *v1.Pod) {
	if p == nil {
		return
	}
	for _, b := range c.list(p.Namespace) {
		if sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && sel.Matches(labels.Set(p.Labels)) {
			c.queue.Add(controller.Key(b))
		}
	}
}

func (c *reconciler) sync(ctx context.Context, b *policyv1.PodDisruptionBudget) (time.Duration, error) {
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return 0, c.write(ctx, b, failed(b, err.Error(), time.Now()))
	}
	found, err := c.Informers.Core().V1().Pods().Lister().Pods(b.Namespace).List(sel)
	if err != nil {
		return 0, err
	}
	var pods []*v1.Pod
	for _, p := range found {
		if !podutil.Terminal(p) {
			pods = append(pods, p)
		}
	}
	expected, desired, problem := expect(b, pods, c.scale)
	if problem != "" {
		return 0, c.write(ctx, b, failed(b, problem, time.Now()))
	}
	st, again := status(b, pods, expected, desired, time.Now())
	return again, c.write(ctx, b, st)
}

func (c *reconciler) write(ctx context.Context, b *policyv1.PodDisruptionBudget, st policyv1.PodDisruptionBudgetStatus) error {
	// The eviction API writes here too: the version guards both.
	_, _, err := kube.PatchStatus(ctx, c.Client.PolicyV1().PodDisruptionBudgets(b.Namespace), b, b.Status, st)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the status of disruption budget %s: %w", controller.Key(b), err)
	}
	return nil
}

// scale finds the size of what a pod belongs to in the end.
func (c *reconciler) scale(p *v1.Pod) (owner string, size int32, ok bool) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return "", 0, false
	}
	n := func(r *int32) int32 {
		if r == nil {
			return 1
		}
		return *r
	}
	apps := c.Informers.Apps().V1()
	switch ref.Kind {
	case "ReplicaSet":
		s, err := apps.ReplicaSets().Lister().ReplicaSets(p.Namespace).Get(ref.Name)
		if err != nil || s.UID != ref.UID {
			return "", 0, false
		}
		if up := metav1.GetControllerOfNoCopy(s); up != nil && up.Kind == "Deployment" {
			d, err := apps.Deployments().Lister().Deployments(p.Namespace).Get(up.Name)
			if err != nil || d.UID != up.UID {
				return "", 0, false
			}
			return string(d.UID), n(d.Spec.Replicas), true
		}
		return string(s.UID), n(s.Spec.Replicas), true
	case "StatefulSet":
		s, err := apps.StatefulSets().Lister().StatefulSets(p.Namespace).Get(ref.Name)
		if err != nil || s.UID != ref.UID {
			return "", 0, false
		}
		return string(s.UID), n(s.Spec.Replicas), true
	case "ReplicationController":
		s, err := c.Informers.Core().V1().ReplicationControllers().Lister().ReplicationControllers(p.Namespace).Get(ref.Name)
		if err != nil || s.UID != ref.UID {
			return "", 0, false
		}
		return string(s.UID), n(s.Spec.Replicas), true
	}
	return "", 0, false
}
