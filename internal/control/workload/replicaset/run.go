package replicaset

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/podutil"
)

// object is one set with the calls that differ between the two kinds.
type object struct {
	meta        metav1.Object
	obj         runtime.Object
	kind        string
	ref         metav1.OwnerReference
	selector    labels.Selector
	template    *v1.PodTemplateSpec
	set         Set
	live        func(context.Context) (metav1.Object, error)
	patchStatus func(context.Context, status) error
	family      types.UID // the Deployment's UID
}

// source reads sets of one kind from its cache.
type source struct {
	informer cache.SharedIndexInformer
	kind     string
	get      func(namespace, name string) (*object, error)
	parse    func(o any) *object
}

type reconciler struct {
	controller.Env
	pods   *podcontrol.Pods
	queue  *controller.Queue
	source source
}

// Run keeps ReplicaSets until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Apps().V1().ReplicaSets()
	list := inf.Lister()
	parse := func(rs *appsv1.ReplicaSet) *object { return fromReplicaSet(e, rs) }
	if err := podcontrol.IndexOwners(inf.Informer()); err != nil {
		return err
	}
	return run(ctx, e, "replicaset-controller", source{
		informer: inf.Informer(), kind: "ReplicaSet",
		get: func(ns, name string) (*object, error) {
			rs, err := list.ReplicaSets(ns).Get(name)
			if err != nil {
				return nil, err
			}
			return parse(rs), nil
		},
		parse: func(o any) *object { return parse(o.(*appsv1.ReplicaSet)) },
	})
}

// RunReplicationControllers keeps ReplicationControllers until the context ends.
func RunReplicationControllers(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Core().V1().ReplicationControllers()
	list := inf.Lister()
	parse := func(rc *v1.ReplicationController) *object { return fromReplicationController(e, rc) }
	return run(ctx, e, "replication-controller", source{
		informer: inf.Informer(), kind: "ReplicationController",
		get: func(ns, name string) (*object, error) {
			rc, err := list.ReplicationControllers(ns).Get(name)
			if err != nil {
				return nil, err
			}
			return parse(rc), nil
		},
		parse: func(o any) *object { return parse(o.(*v1.ReplicationController)) },
	})
}

func run(ctx context.Context, e controller.Env, component string, src source) error {
	pods, err := podcontrol.NewPods(e, component)
	if err != nil {
		return err
	}
	c := &reconciler{Env: e, pods: pods, queue: controller.NewQueue(), source: src}
	sets, err := controller.On(ctx, src.informer, func(_, o runtime.Object, gone bool) {
		m := o.(metav1.Object)
		if gone {
			pods.Overlay.Forget(m.GetUID())
		}
		c.queue.Add(controller.Key(m))
	})
	if err != nil {
		return err
	}
	seen, err := pods.Watch(ctx, func(ref *metav1.OwnerReference, p *v1.Pod) {
		if ref.Kind == src.kind {
			c.queue.Add(p.Namespace + "/" + ref.Name)
		}
	}, c.orphan)
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, sets, seen); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 8, c.sync)
}

// orphan looks for sets that might adopt a pod.
func (c *reconciler) orphan(p *v1.Pod) {
	if len(p.Labels) == 0 || p.DeletionTimestamp != nil {
		return
	}
	for _, o := range podcontrol.Indexed[runtime.Object](c.source.informer, cache.NamespaceIndex, p.Namespace) {
		if obj := c.source.parse(o); obj.selector != nil && !obj.selector.Empty() && obj.selector.Matches(labels.Set(p.Labels)) {
			c.queue.Add(controller.Key(obj.meta))
		}
	}
}

func (c *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name := controller.Split(key)
	o, err := c.source.get(ns, name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if o.selector == nil {
		c.Log.Error("the selector cannot be read", "object", key)
		return 0, nil
	}
	pods, err := c.pods.Claimed(ctx, o.meta, o.ref, o.selector, o.live)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	plan := Make(&o.set, pods, c.sharing(o, pods), now)
	reason, failure := c.perform(ctx, o, plan)
	outcome(&plan.Status, reason, failure, now)
	if err := o.patchStatus(ctx, plan.Status); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("writing the status of %s: %w", key, err)
	}
	return plan.Wake, failure
}

// perform creates and deletes; the reason names what failed first.
func (c *reconciler) perform(ctx context.Context, o *object, plan Plan) (string, error) {
	if plan.Create > 0 {
		c.Note(c.source.kind, o.meta, fmt.Sprintf("created %d pods", plan.Create), plan.Because...)
		_, err := podcontrol.Batch(plan.Create, func(int) error {
			_, err := c.pods.Create(ctx, o.obj, o.meta.GetUID(), podcontrol.FromTemplate(o.template, o.meta.GetNamespace(),
				o.meta.GetName(), o.ref))
			return err
		})
		if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			err = nil // the set goes with its namespace
		}
		return "FailedCreate", err
	}
	if len(plan.Delete) > 0 {
		c.Note(c.source.kind, o.meta, fmt.Sprintf("deleted %d pods", len(plan.Delete)), plan.Because...)
		return "FailedDelete", podcontrol.All(0, len(plan.Delete), func(i int) error {
			return c.pods.Delete(ctx, o.obj, plan.Delete[i])
		})
	}
	return "", nil
}

// sharing counts, per node, the active pods of the set and of its sisters
// under the same Deployment. It is only needed to choose victims.
func (c *reconciler) sharing(o *object, own []*v1.Pod) map[string]int {
	count := map[string]int{}
	add := func(pods []*v1.Pod) {
		for _, p := range pods {
			if podutil.Active(p) && p.Spec.NodeName != "" {
				count[p.Spec.NodeName]++
			}
		}
	}
	if int32(len(own)) <= o.set.Replicas {
		return count
	}
	add(own)
	if o.family != "" {
		for _, sister := range podcontrol.Indexed[metav1.Object](c.source.informer, podcontrol.ByOwner, string(o.family)) {
			if sister.GetUID() != o.meta.GetUID() {
				add(podcontrol.Indexed[*v1.Pod](c.pods.Informer, podcontrol.ByOwner, string(sister.GetUID())))
			}
		}
	}
	return count
}
