// Package endpoint turns Services and pods into EndpointSlices, keeps the
// older Endpoints objects, and mirrors hand-written Endpoints into slices.
package endpoint

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice"
	endpointutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

const (
	// slicesBy is the managed-by label of slices made from pods.
	slicesBy = "endpointslice-controller.k8s.io"
	// maxPerSlice is upstream's default size of a slice.
	maxPerSlice = 100
	byService   = "service"
)

type slices struct {
	controller.Env
	queue    *controller.Queue
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	slices   cache.SharedIndexInformer
	rec      *endpointslice.Reconciler
	tracker  *endpointutil.EndpointSliceTracker
	triggers *endpointutil.TriggerTimeTracker
}

// RunSlices keeps the EndpointSlices of Services with a selector.
func RunSlices(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	sliceInf := e.Informers.Discovery().V1().EndpointSlices().Informer()
	if err := indexByService(sliceInf); err != nil {
		return err
	}
	tracker := endpointutil.NewEndpointSliceTracker()
	c := &slices{Env: e, queue: controller.NewQueue(), services: core.Services().Lister(), pods: core.Pods().Lister(), slices: sliceInf,
		tracker: tracker, triggers: endpointutil.NewTriggerTimeTracker(),
		rec: endpointslice.NewReconciler(e.Client, core.Nodes().Lister(), maxPerSlice, tracker, nil,
			e.Recorder("endpoint-slice-controller"),
			slicesBy, endpointslice.WithPreferSameTrafficDistributionEnabled(true))}
	a, err1 := controller.On(ctx, core.Services().Informer(), func(_, s *v1.Service, _ bool) { c.queue.Add(controller.Key(s)) })
	b, err2 := controller.On(ctx, core.Pods().Informer(), onPod(c.services, c.queue))
	d, err3 := controller.On(ctx, sliceInf, c.sliceChanged)
	n, err4 := controller.On(ctx, core.Nodes().Informer(), c.nodeChanged)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if err := e.Synced(ctx, n, a, b, d); err != nil {
		return nil
	}
	return e.Run(klog.NewContext(ctx, logr.FromSlogHandler(e.Log.Handler())), c.queue, 5, c.sync)
}

func indexByService(inf cache.SharedIndexInformer) error {
	return kube.Index(inf, cache.Indexers{byService: func(o any) ([]string, error) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}})
}

// onPod queues the services a changed pod belongs to, or belonged to.
func onPod(services corelisters.ServiceLister, q *controller.Queue) func(old, p *v1.Pod, gone bool) {
	return func(old, p *v1.Pod, gone bool) {
		var was, is any
		if old != nil && !gone {
			was = old
		}
		is = p
		key := endpointutil.GetPodUpdateProjectionKey(was, is)
		if key == nil {
			return
		}
		names, err := endpointutil.GetServicesToUpdate(services, key)
		if err != nil {
			return
		}
		for n := range names {
			q.Add(n)
		}
	}
}

func (c *slices) sliceChanged(old, s *discoveryv1.EndpointSlice, gone bool) {
	mine := s.Labels[discoveryv1.LabelManagedBy] == slicesBy
	was := old != nil && old.Labels[discoveryv1.LabelManagedBy] == slicesBy
	if !mine && !was {
		return
	}
	switch {
	case gone:
		if c.tracker.HandleDeletion(s) {
			return // expected: our own
		}
	case old == nil:
		if c.tracker.Has(s) && !c.tracker.ShouldSync(s) {
			return
		}
	case mine == was && !c.tracker.ShouldSync(s):
		return
	}
	for _, o := range []*discoveryv1.EndpointSlice{old, s} {
		if o != nil && o.Labels[discoveryv1.LabelServiceName] != "" {
			c.queue.Add(o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName])
		}
	}
}

// nodeChanged matters to services whose traffic prefers what is near.
func (c *slices) nodeChanged(old, n *v1.Node, gone bool) {
	if old != nil && !gone && equality.Semantic.DeepEqual(old.Labels, n.Labels) {
		return
	}
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if s.Spec.TrafficDistribution != nil {
			c.queue.Add(controller.Key(s))
		}
	}
}

func (c *slices) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name := controller.Split(key)
	svc, err := c.services.Services(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(ns, name)
		c.rec.DeleteService(ns, name)
		c.tracker.DeleteService(ns, name)
		return 0, nil // the slices go with their owner
	}
	if err != nil {
		return 0, err
	}
	if svc.Spec.Type == v1.ServiceTypeExternalName || svc.Spec.Selector == nil || svc.DeletionTimestamp != nil {
		return 0, nil
	}
	pods, err := c.pods.Pods(ns).List(labels.SelectorFromValidatedSet(svc.Spec.Selector))
	if err != nil {
		return 0, err
	}
	var have []*discoveryv1.EndpointSlice
	for _, s := range podcontrol.Indexed[*discoveryv1.EndpointSlice](c.slices, byService, key) {
		if s.Labels[discoveryv1.LabelManagedBy] == slicesBy && s.DeletionTimestamp == nil {
			have = append(have, s)
		}
	}
	if c.tracker.StaleSlices(svc, have) {
		return 0, errors.New("the cached slices are behind our own writes")
	}
	at := c.triggers.ComputeEndpointLastChangeTriggerTime(ns, svc, pods)
	return 0, c.rec.Reconcile(klog.FromContext(ctx), svc, pods, have, at)
}
