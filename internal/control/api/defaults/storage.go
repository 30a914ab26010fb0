package defaults

import (
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
)

func StorageClass(c *storage.StorageClass) {
	fill(&c.ReclaimPolicy, v1.PersistentVolumeReclaimDelete)
	fill(&c.VolumeBindingMode, storage.VolumeBindingImmediate)
}

func CSIDriver(d *storage.CSIDriver) {
	fill(&d.Spec.AttachRequired, true)
	fill(&d.Spec.PodInfoOnMount, false)
	fill(&d.Spec.StorageCapacity, false)
	fill(&d.Spec.FSGroupPolicy, storage.ReadWriteOnceWithFSTypeFSGroupPolicy)
	fill(&d.Spec.RequiresRepublish, false)
	fill(&d.Spec.SELinuxMount, false)
	if len(d.Spec.VolumeLifecycleModes) == 0 {
		d.Spec.VolumeLifecycleModes = []storage.VolumeLifecycleMode{storage.VolumeLifecyclePersistent}
	}
}
