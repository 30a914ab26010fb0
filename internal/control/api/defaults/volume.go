package defaults

import (
	v1 "k8s.io/api/core/v1"
)

// tokenLifetime is the default lifetime of a projected service account token,
// in seconds.
const tokenLifetime int64 = 60 * 60

func volume(v *v1.Volume) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil {
		fill(&v.HostPath.Type, v1.HostPathUnset)
	}
	if v.Secret != nil {
		fill(&v.Secret.DefaultMode, fileMode)
	}
	if v.ConfigMap != nil {
		fill(&v.ConfigMap.DefaultMode, fileMode)
	}
	if v.DownwardAPI != nil {
		fill(&v.DownwardAPI.DefaultMode, fileMode)
		downwardFiles(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		projected(v.Projected)
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		claimSpec(&v.Ephemeral.VolumeClaimTemplate.Spec)
	}
	if v.ISCSI != nil {
		zero(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		zero(&v.RBD.RBDPool, "rbd")
		zero(&v.RBD.RadosUser, "admin")
		zero(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.ScaleIO != nil {
		zero(&v.ScaleIO.StorageMode, "ThinProvisioned")
		zero(&v.ScaleIO.FSType, "xfs")
	}
	azureDisk(v.AzureDisk)
}

func projected(p *v1.ProjectedVolumeSource) {
	fill(&p.DefaultMode, fileMode)
	for i := range p.Sources {
		source := &p.Sources[i]
		if source.DownwardAPI != nil {
			downwardFiles(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			fill(&source.ServiceAccountToken.ExpirationSeconds, tokenLifetime)
		}
	}
}

func downwardFiles(files []v1.DownwardAPIVolumeFile) {
	for i := range files {
		fieldRef(files[i].FieldRef)
	}
}

func azureDisk(d *v1.AzureDiskVolumeSource) {
	if d == nil {
		return
	}
	fill(&d.CachingMode, v1.AzureDataDiskCachingReadWrite)
	fill(&d.Kind, v1.AzureSharedBlobDisk)
	fill(&d.FSType, "ext4")
	fill(&d.ReadOnly, false)
}

func PersistentVolume(pv *v1.PersistentVolume) {
	zero(&pv.Status.Phase, v1.VolumePending)
	zero(&pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain)
	fill(&pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	roundUp(pv.Spec.Capacity)
	source := &pv.Spec.PersistentVolumeSource
	if source.HostPath != nil {
		fill(&source.HostPath.Type, v1.HostPathUnset)
	}
	if source.ISCSI != nil {
		zero(&source.ISCSI.ISCSIInterface, "default")
	}
	if source.RBD != nil {
		zero(&source.RBD.RBDPool, "rbd")
		zero(&source.RBD.RadosUser, "admin")
		zero(&source.RBD.Keyring, "/etc/ceph/keyring")
	}
	if source.ScaleIO != nil {
		zero(&source.ScaleIO.StorageMode, "ThinProvisioned")
		zero(&source.ScaleIO.FSType, "xfs")
	}
	azureDisk(source.AzureDisk)
}

func PersistentVolumeClaim(c *v1.PersistentVolumeClaim) {
	zero(&c.Status.Phase, v1.ClaimPending)
	claimSpec(&c.Spec)
	roundUp(c.Status.Capacity)
	roundUp(c.Status.AllocatedResources)
}

func claimSpec(s *v1.PersistentVolumeClaimSpec) {
	fill(&s.VolumeMode, v1.PersistentVolumeFilesystem)
	roundUp(s.Resources.Limits)
	roundUp(s.Resources.Requests)
}
