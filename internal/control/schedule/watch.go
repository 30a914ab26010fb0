package schedule

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/podutil"
)

// watch subscribes to everything placement depends on and returns once all
// that exists is in the snapshot.
func (l *loop) watch(ctx context.Context) error {
	core, storage := l.Informers.Core().V1(), l.Informers.Storage().V1()
	var synced []cache.DoneChecker
	var firstErr error
	sub := func(c cache.DoneChecker, err error) {
		if err != nil && firstErr == nil {
			firstErr = err
		}
		synced = append(synced, c)
	}
	sub(controller.On(ctx, core.Nodes().Informer(), func(_, n *v1.Node, gone bool) { l.post(func() { l.node(n, gone) }) }))
	sub(controller.On(ctx, core.Pods().Informer(), func(_, p *v1.Pod, gone bool) { l.post(func() { l.pod(ctx, p, gone) }) }))
	sub(controller.On(ctx, core.Namespaces().Informer(), func(_, n *v1.Namespace, gone bool) { l.post(func() { l.namespace(n, gone) }) }))
	sub(controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, c *v1.PersistentVolumeClaim,
		gone bool) {
		l.post(func() { l.claim(ctx, c, gone) })
	}))
	sub(controller.On(ctx, core.PersistentVolumes().Informer(),
		func(_, v *v1.PersistentVolume, gone bool) { l.post(func() { l.volume(v, gone) }) }))
	sub(controller.On(ctx, storage.StorageClasses().Informer(), func(_, c *storagev1.StorageClass,
		gone bool) {
		l.post(func() { l.class(c, gone) })
	}))
	sub(controller.On(ctx, storage.CSINodes().Informer(),
		func(_, c *storagev1.CSINode, gone bool) { l.post(func() { l.csiNode(c, gone) }) }))
	sub(controller.On(ctx, storage.CSIDrivers().Informer(),
		func(_, d *storagev1.CSIDriver, gone bool) { l.post(func() { l.csiDriver(d, gone) }) }))
	sub(controller.On(ctx, storage.CSIStorageCapacities().Informer(), func(_, c *storagev1.CSIStorageCapacity,
		gone bool) {
		l.post(func() { l.capacity(c, gone) })
	}))
	sub(controller.On(ctx, l.Informers.Policy().V1().PodDisruptionBudgets().Informer(), func(_, b *policyv1.PodDisruptionBudget,
		gone bool) {
		l.post(func() { l.budget(b, gone) })
	}))
	dra := l.Informers.Resource().V1()
	sub(controller.On(ctx, dra.ResourceSlices().Informer(), func(_, s *resourceapi.ResourceSlice,
		gone bool) {
		l.post(func() { l.slice(s, gone) })
	}))
	sub(controller.On(ctx, dra.DeviceClasses().Informer(), func(_, c *resourceapi.DeviceClass,
		gone bool) {
		l.post(func() { l.deviceClass(c, gone) })
	}))
	sub(controller.On(ctx, dra.ResourceClaims().Informer(), func(_, c *resourceapi.ResourceClaim,
		gone bool) {
		l.post(func() { l.resourceClaim(c, gone) })
	}))
	if firstErr != nil {
		return firstErr
	}
	l.Informers.StartWithContext(ctx)
	cache.WaitFor(ctx, "", synced...)
	return nil
}

func (l *loop) node(n *v1.Node, gone bool) {
	if gone {
		l.snap.RemoveNode(n.Name)
		return
	}
	helps := l.snap.NodeHelps(n)
	l.snap.SetNode(n)
	if helps {
		l.backlog.happened(nodeChanged, time.Now())
	}
}

func (l *loop) pod(ctx context.Context, p *v1.Pod, gone bool) {
	ended := gone || podutil.Terminal(p)
	switch {
	case ended:
		l.leave(p)
	case p.Spec.NodeName != "":
		l.arrived(p)
	case p.Spec.SchedulerName != l.Name || place.Gated(p) || place.AwaitsClaims(p) || p.DeletionTimestamp != nil:
		l.leave(p)
	case l.flights[p.UID] != nil:
		// Placed already; the cache is behind.
	default:
		parsed, err := place.Parse(p)
		if err != nil {
			l.recorder.Eventf(p, v1.EventTypeWarning, "FailedScheduling", "cannot be scheduled: %v", err)
			l.backlog.remove(p.UID)
			return
		}
		if at := p.Status.NominatedNodeName; at != "" {
			l.snap.Nominate(parsed, at)
		}
		l.backlog.add(parsed, time.Now())
	}
}

// arrived takes note of a pod seen bound.
func (l *loop) arrived(p *v1.Pod) {
	l.backlog.remove(p.UID)
	if f := l.flights[p.UID]; f != nil {
		l.landed(f)
	}
	fresh := !l.snap.Placed(p.UID)
	if err := l.snap.SetPod(p); err != nil {
		l.Log.Warn("a bound pod's constraints cannot be read and count for nothing", "pod", controller.Key(p), "err", err)
	}
	if fresh {
		l.backlog.happened(podAdded, time.Now())
	}
}

// leave takes note of a pod that holds nothing any more, or is not ours.
func (l *loop) leave(p *v1.Pod) {
	l.backlog.remove(p.UID)
	if f := l.flights[p.UID]; f != nil {
		l.landed(f)
	}
	held := l.snap.Placed(p.UID)
	l.snap.RemovePod(p.UID)
	if held || p.Status.NominatedNodeName != "" {
		l.backlog.happened(podGone, time.Now())
	}
}

func (l *loop) namespace(n *v1.Namespace, gone bool) {
	if gone {
		l.snap.RemoveNamespace(n.Name)
		return
	}
	l.snap.SetNamespace(n.Name, n.Labels)
	l.backlog.happened(podAdded, time.Now())
}

func (l *loop) claim(ctx context.Context, c *v1.PersistentVolumeClaim, gone bool) {
	if gone {
		l.snap.RemoveClaim(c.Namespace, c.Name)
		return
	}
	l.snap.SetClaim(c)
	l.backlog.happened(volumeChanged, time.Now())
	l.volumesProgress(ctx, c)
}

func (l *loop) volume(v *v1.PersistentVolume, gone bool) {
	if gone {
		l.snap.RemoveVolume(v.Name)
		return
	}
	l.snap.SetVolume(v)
	l.backlog.happened(volumeChanged, time.Now())
}

func (l *loop) class(c *storagev1.StorageClass, gone bool) {
	if gone {
		l.snap.RemoveClass(c.Name)
		return
	}
	l.snap.SetClass(c)
	l.backlog.happened(volumeChanged, time.Now())
}

func (l *loop) csiNode(c *storagev1.CSINode, gone bool) {
	if gone {
		l.snap.RemoveCSINode(c.Name)
		return
	}
	l.snap.SetCSINode(c)
	l.backlog.happened(nodeChanged, time.Now())
}

func (l *loop) csiDriver(d *storagev1.CSIDriver, gone bool) {
	if gone {
		l.snap.RemoveCSIDriver(d.Name)
	} else {
		l.snap.SetCSIDriver(d)
	}
	l.backlog.happened(volumeChanged, time.Now())
}

func (l *loop) capacity(c *storagev1.CSIStorageCapacity, gone bool) {
	if gone {
		l.snap.RemoveCapacity(c)
		return
	}
	l.snap.SetCapacity(c)
	l.backlog.happened(volumeChanged, time.Now())
}

func (l *loop) budget(b *policyv1.PodDisruptionBudget, gone bool) {
	if gone {
		l.snap.RemoveBudget(b.Namespace, b.Name)
		return
	}
	l.snap.SetBudget(b)
}

// bound says whether a claim is bound for good.
func bound(c *v1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && c.Annotations["pv.kubernetes.io/bind-completed"] != ""
}
