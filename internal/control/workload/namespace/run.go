package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// Waiting for finalizers of others has no event to wait for: look again after
// this long, doubling per pass.
const (
	lookAgain     = 250 * time.Millisecond
	lookAgainMost = 15 * time.Second
)

type reconciler struct {
	controller.Env
	metadata  metadata.Interface
	discovery discovery.DiscoveryInterface
	queue     *controller.Queue
}

// Run empties namespaces until the context ends.
func Run(ctx context.Context, e controller.Env, disc discovery.DiscoveryInterface) error {
	c := &reconciler{Env: e, metadata: e.Metadata, discovery: disc, queue: controller.NewQueue()}
	inf := e.Informers.Core().V1().Namespaces()
	a, err1 := controller.On(ctx, inf.Informer(), func(_, ns *v1.Namespace, gone bool) {
		if !gone && ns.DeletionTimestamp != nil {
			c.queue.Add(ns.Name)
		}
	})
	// A pod that is gone may have been the last one in the way.
	b, err2 := controller.On(ctx, e.Informers.Core().V1().Pods().Informer(), func(_, p *v1.Pod, gone bool) {
		if !gone {
			return
		}
		if ns, err := inf.Lister().Get(p.Namespace); err == nil && ns.DeletionTimestamp != nil {
			c.queue.Add(p.Namespace)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 10, c.sync)
}

func (c *reconciler) sync(ctx context.Context, name string) (time.Duration, error) {
	api := c.Client.CoreV1().Namespaces()
	// Live: what is decided here cannot be taken back.
	ns, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	if ns.DeletionTimestamp == nil || !holds(ns) {
		return 0, nil
	}
	content := c.empty(ctx, name)
	st := ns.Status.DeepCopy()
	st.Phase = v1.NamespaceTerminating
	st.Conditions = conditions(ns.Status.Conditions, content, time.Now())
	written, changed, err := kube.PatchStatus(ctx, api, ns, ns.Status, *st)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("writing the status of namespace %s: %w", name, err)
	}
	if changed {
		ns = written
	}
	if !content.Empty() {
		age := time.Since(ns.DeletionTimestamp.Time)
		return min(max(age/4, lookAgain), lookAgainMost), nil
	}
	return 0, c.release(ctx, ns)
}

func holds(ns *v1.Namespace) bool {
	for _, f := range ns.Spec.Finalizers {
		if f == v1.FinalizerKubernetes {
			return true
		}
	}
	return false
}

// release takes our finalizer off; the server then removes the namespace.
func (c *reconciler) release(ctx context.Context, ns *v1.Namespace) error {
	ns = ns.DeepCopy()
	keep := []v1.FinalizerName{}
	for _, f := range ns.Spec.Finalizers {
		if f != v1.FinalizerKubernetes {
			keep = append(keep, f)
		}
	}
	ns.Spec.Finalizers = keep
	_, err := c.Client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalizing namespace %s: %w", ns.Name, err)
	}
	c.Note("Namespace", ns, "removed: it is empty")
	return nil
}

// empty deletes what is in the namespace and reports what is left. Other kinds
// stay while pods run, since pods may need them to end well.
func (c *reconciler) empty(ctx context.Context, name string) *content {
	content := &content{Remaining: map[string]int{}, Finalizers: map[string]int{}}
	var rest []schema.GroupVersionResource
	lists, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	if err != nil {
		content.DiscoveryErr = err
	}
	pods := v1.SchemeGroupVersion.WithResource("pods")
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			verbs := map[string]bool{}
			for _, v := range r.Verbs {
				verbs[v] = true
			}
			if gvr := gv.WithResource(r.Name); verbs["list"] && verbs["delete"] && gvr != pods {
				rest = append(rest, gvr)
			}
		}
	}
	c.clear(ctx, name, pods, content)
	if len(content.Remaining) > 0 || len(content.DeleteErrs) > 0 {
		return content
	}
	for _, gvr := range rest {
		c.clear(ctx, name, gvr, content)
	}
	return content
}

// clear deletes one kind and counts what is left of it.
func (c *reconciler) clear(ctx context.Context, ns string, gvr schema.GroupVersionResource, content *content) {
	api := c.metadata.Resource(gvr).Namespace(ns)
	fail := func(err error) {
		if !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
			content.DeleteErrs = append(content.DeleteErrs, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
		}
	}
	left, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		fail(err)
		return
	}
	if len(left.Items) == 0 {
		return
	}
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	if err := api.DeleteCollection(ctx, opts, metav1.ListOptions{}); err != nil {
		if !apierrors.IsMethodNotSupported(err) && !apierrors.IsNotFound(err) {
			fail(err)
		}
		for i := range left.Items {
			if err := api.Delete(ctx, left.Items[i].Name, opts); err != nil {
				fail(err)
			}
		}
	}
	if left, err = api.List(ctx, metav1.ListOptions{}); err != nil {
		fail(err)
		return
	}
	for i := range left.Items {
		content.Remaining[gvr.GroupResource().String()]++
		for _, f := range left.Items[i].Finalizers {
			content.Finalizers[f]++
		}
	}
}
