package daemonset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/workload/history"
	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// failRetry are the pauses before a failed pod is replaced on its node.
var failRetry = controller.Backoff{First: time.Second, Most: 15 * time.Minute}

type reconciler struct {
	controller.Env
	pods      *podcontrol.Pods
	queue     *controller.Queue
	list      appslisters.DaemonSetLister
	nodes     corelisters.NodeLister
	revisions cache.SharedIndexInformer

	mu sync.Mutex
	// failures hold, per DaemonSet UID and node, when the next failed pod may
	// be replaced.
	failures map[string]failure
}

type failure struct {
	count int
	until time.Time
	last  types.UID
}

// Run keeps DaemonSets until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	apps := e.Informers.Apps().V1()
	pods, err := podcontrol.NewPods(e, "daemonset-controller")
	if err != nil {
		return err
	}
	c := &reconciler{Env: e, pods: pods, queue: controller.NewQueue(), list: apps.DaemonSets().Lister(),
		nodes:     e.Informers.Core().V1().Nodes().Lister(),
		revisions: apps.ControllerRevisions().Informer(), failures: map[string]failure{}}
	if err := podcontrol.IndexOwners(c.revisions); err != nil {
		return err
	}
	a, err1 := controller.On(ctx, apps.DaemonSets().Informer(), func(_, d *appsv1.DaemonSet, _ bool) { c.queue.Add(controller.Key(d)) })
	b, err2 := pods.Watch(ctx, func(ref *metav1.OwnerReference, p *v1.Pod) {
		if ref.Kind == "DaemonSet" {
			c.queue.Add(p.Namespace + "/" + ref.Name)
		}
	}, nil)
	n, err3 := controller.On(ctx, e.Informers.Core().V1().Nodes().Informer(), c.nodeChanged)
	r, err4 := controller.On(ctx, c.revisions, func(_, r *appsv1.ControllerRevision, _ bool) {
		if ref := metav1.GetControllerOfNoCopy(r); ref != nil && ref.Kind == "DaemonSet" {
			c.queue.Add(r.Namespace + "/" + ref.Name)
		}
	})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, n, r); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 4, controller.Existing(apps.DaemonSets().Informer().GetIndexer(), c.sync))
}

// nodeChanged queues the DaemonSets whose answer for the node may differ.
func (c *reconciler) nodeChanged(old, n *v1.Node, gone bool) {
	if old != nil && !gone && equality.Semantic.DeepEqual(old.Labels, n.Labels) && equality.Semantic.DeepEqual(old.Spec.Taints,
		n.Spec.Taints) &&
		old.Spec.Unschedulable == n.Spec.Unschedulable {
		return
	}
	all, err := c.list.List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		if old != nil && !gone {
			r1, s1 := ShouldRun(d, old)
			if r2, s2 := ShouldRun(d, n); r1 == r2 && s1 == s2 {
				continue
			}
		}
		c.queue.Add(controller.Key(d))
	}
}

func (c *reconciler) sync(ctx context.Context, ds *appsv1.DaemonSet) (time.Duration, error) {
	api := c.Client.AppsV1().DaemonSets(ds.Namespace)
	sel, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil || sel.Empty() {
		c.pods.Recorder.Event(ds, v1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	pods, err := c.pods.Claimed(ctx, ds, podcontrol.Owner(ds, "apps/v1", "DaemonSet"), sel, func(ctx context.Context) (metav1.Object,
		error) {
		return api.Get(ctx, ds.Name, metav1.GetOptions{})
	})
	if err != nil {
		return 0, err
	}
	revision, err := c.history(ctx, ds, pods)
	if err != nil {
		return 0, err
	}
	plan := makePlan(input{DS: ds, Nodes: nodes, Pods: pods, Hash: revision, Now: time.Now(),
		HoldOff: func(node string) time.Duration { return c.holdOff(ds, node, pods) }})
	failed := c.perform(ctx, ds, plan, revision)
	_, _, err = kube.PatchStatus(ctx, api, ds, ds.Status, plan.Status)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return plan.Wake, errors.Join(failed, err)
}

// history keeps the revisions and returns the present one's hash.
func (c *reconciler) history(ctx context.Context, ds *appsv1.DaemonSet, pods []*v1.Pod) (string, error) {
	revs := podcontrol.Indexed[*appsv1.ControllerRevision](c.revisions, podcontrol.ByOwner, string(ds.UID))
	used := map[string]bool{}
	for _, p := range pods {
		used[ds.Name+"-"+p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	o := history.Owner{Object: ds, Ref: podcontrol.Owner(ds, "apps/v1", "DaemonSet"), Template: &ds.Spec.Template,
		Labels: ds.Spec.Template.Labels,
		Limit:  ds.Spec.RevisionHistoryLimit, Collision: ds.Status.CollisionCount}
	got, collision, err := history.Perform(ctx, c.Client, o, history.Make(o, revs, used))
	if collision {
		n := int32(1)
		if ds.Status.CollisionCount != nil {
			n += *ds.Status.CollisionCount
		}
		_, perr := kube.Patch(ctx, c.Client.AppsV1().DaemonSets(ds.Namespace), ds, kube.Unchanged,
			kube.Change{Status: applyappsv1.DaemonSetStatus().WithCollisionCount(n), Subresource: "status"})
		err = errors.Join(err, perr)
	}
	if err != nil {
		return "", err
	}
	return got.Labels[appsv1.ControllerRevisionHashLabelKey], nil
}

// holdOff returns how long the failed pod on a node has to wait for its
// replacement: longer with each new failure there.
func (c *reconciler) holdOff(ds *appsv1.DaemonSet, node string, pods []*v1.Pod) time.Duration {
	var latest types.UID
	for _, p := range pods {
		if target(p) == node && p.Status.Phase == v1.PodFailed {
			latest = p.UID
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := string(ds.UID)+"/"+node, time.Now()
	f := c.failures[key]
	if f.last != latest {
		if now.Sub(f.until) > 2*failRetry.Most {
			f.count = 0 // it did well for long
		}
		f.count++
		f.last, f.until = latest, now.Add(failRetry.Delay(f.count))
		c.failures[key] = f
	}
	return max(f.until.Sub(now), 0)
}

func (c *reconciler) perform(ctx context.Context, ds *appsv1.DaemonSet, plan plan, hash string) error {
	if len(plan.Because) > 0 {
		c.Note("DaemonSet", ds, "changed pods", plan.Because...)
	}
	for _, p := range plan.Ended {
		if p.Status.Phase == v1.PodFailed {
			c.pods.Recorder.Eventf(ds, v1.EventTypeWarning, "FailedDaemonPod",
				"Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, p.Spec.NodeName)
		} else {
			c.pods.Recorder.Eventf(ds, v1.EventTypeNormal, "SucceededDaemonPod",
				"Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, p.Spec.NodeName)
		}
	}
	_, err := podcontrol.Batch(len(plan.Create), func(i int) error {
		_, err := c.pods.Create(ctx, ds, ds.UID, PodFor(ds, plan.Create[i], hash))
		if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("daemon set %s: %w", controller.Key(ds), err)
	}
	return errors.Join(err, podcontrol.All(0, len(plan.Delete), func(i int) error { return c.pods.Delete(ctx, ds, plan.Delete[i]) }))
}
