package provision

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/localvolume"
)

type runtimeObject = runtime.Object

// watch turns changes into keys of the queue.
func (p *provisioner) watch(ctx context.Context) ([]cache.DoneChecker, error) {
	core, storage := p.Informers.Core().V1(), p.Informers.Storage().V1()
	var out []cache.DoneChecker
	var errs []error
	add := func(d cache.DoneChecker, err error) { out, errs = append(out, d), append(errs, err) }
	add(controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, c *v1.PersistentVolumeClaim, gone bool) {
		if gone {
			p.told.Delete(c.UID)
			return
		}
		p.queue.Add("c/" + controller.Key(c))
	}))
	add(controller.On(ctx, core.PersistentVolumes().Informer(), func(_, v *v1.PersistentVolume, gone bool) {
		if gone {
			p.told.Delete(v.UID)
		} else if ours(v) {
			p.queue.Add("v/" + v.Name)
		}
	}))
	add(controller.On(ctx, core.Nodes().Informer(), func(old, n *v1.Node, gone bool) {
		if old != nil && !gone {
			return
		}
		p.all()
		volumes, _ := p.volumes.List(labels.Everything()) //nolint:errcheck // a cache with a selector that fits all
		for _, v := range volumes {
			if nodeOf(v) == n.Name {
				p.queue.Add("v/" + v.Name)
			}
		}
	}))
	add(controller.On(ctx, storage.StorageClasses().Informer(), func(_, c *storagev1.StorageClass, _ bool) {
		if c.Provisioner != localvolume.Name {
			return
		}
		p.all()
		nodes, _ := p.csi.List(labels.Everything()) //nolint:errcheck // as above
		for _, n := range nodes {
			p.queue.Add("n/" + n.Name)
		}
	}))
	add(controller.On(ctx, storage.CSINodes().Informer(), func(old, n *storagev1.CSINode, gone bool) {
		if !gone && (old == nil || old.ResourceVersion != n.ResourceVersion) {
			p.queue.Add("n/" + n.Name)
		}
	}))
	add(controller.On(ctx, storage.CSIDrivers().Informer(), func(_, d *storagev1.CSIDriver, gone bool) {
		if gone && d.Name == localvolume.Name {
			p.queue.Add("setup")
		}
	}))
	add(controller.On(ctx, storage.CSIStorageCapacities().Informer(), func(_, _ *storagev1.CSIStorageCapacity, _ bool) {}))
	return out, errors.Join(errs...)
}
