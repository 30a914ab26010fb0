package validate

import (
	"fmt"
	"path"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func PersistentVolume(pv *v1.PersistentVolume) errs {
	s := &pv.Spec
	all := accessModes(specPath.Child("accessModes"), s.AccessModes)
	if len(s.Capacity) == 0 {
		all = append(all, field.Required(specPath.Child("capacity"), ""))
	}
	if _, ok := s.Capacity[v1.ResourceStorage]; !ok || len(s.Capacity) > 1 {
		all = append(all, field.NotSupported(specPath.Child("capacity"), s.Capacity, []v1.ResourceName{v1.ResourceStorage}))
	}
	for _, name := range sorted(s.Capacity) {
		if q := s.Capacity[name]; q.Sign() <= 0 {
			all = append(all, field.Invalid(specPath.Child("capacity").Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	if c := s.VolumeAttributesClassName; c != nil {
		at := specPath.Child("volumeAttributesClassName")
		if *c == "" {
			all = append(all, field.Required(at, "an empty string is disallowed"))
		} else {
			all = append(all, invalid(at, *c, isSubdomain(*c))...)
		}
		if s.CSI == nil {
			all = append(all, field.Required(specPath.Child("csi"), "has to be specified when using volumeAttributesClassName"))
		}
	}
	all = append(all, oneOf(specPath.Child("persistentVolumeReclaimPolicy"), s.PersistentVolumeReclaimPolicy,
		v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle, v1.PersistentVolumeReclaimRetain)...)
	all = append(all, volumeMode(specPath.Child("volumeMode"), s.VolumeMode)...)
	if s.StorageClassName != "" {
		all = append(all, invalid(specPath.Child("storageClassName"), s.StorageClassName, isSubdomain(s.StorageClassName))...)
	}
	if a := s.NodeAffinity; a != nil {
		if a.Required == nil {
			all = append(all, field.Required(specPath.Child("nodeAffinity", "required"), "must specify required node constraints"))
		} else {
			all = append(all, nodeSelector(specPath.Child("nodeAffinity", "required"), a.Required)...)
		}
	}
	return append(all, persistentSource(specPath, s)...)
}

func persistentSource(specPath *field.Path, s *v1.PersistentVolumeSpec) errs {
	members := []given{
		{"hostPath", s.HostPath != nil}, {"gcePersistentDisk", s.GCEPersistentDisk != nil},
		{"awsElasticBlockStore", s.AWSElasticBlockStore != nil},
		{"glusterfs", s.Glusterfs != nil}, {"flocker", s.Flocker != nil}, {"nfs", s.NFS != nil}, {"rbd", s.RBD != nil},
		{"quobyte", s.Quobyte != nil},
		{"cephFS", s.CephFS != nil}, {"iscsi", s.ISCSI != nil}, {"cinder", s.Cinder != nil}, {"fc", s.FC != nil},
		{"flexVolume", s.FlexVolume != nil},
		{"azureFile", s.AzureFile != nil}, {"vsphereVolume", s.VsphereVolume != nil},
		{"photonPersistentDisk", s.PhotonPersistentDisk != nil},
		{"portworxVolume", s.PortworxVolume != nil}, {"azureDisk", s.AzureDisk != nil}, {"scaleIO", s.ScaleIO != nil},
		{"local", s.Local != nil},
		{"storageos", s.StorageOS != nil}, {"csi", s.CSI != nil}}
	all := exactlyOne(specPath, tooManyVolumeTypes, "must specify a volume type", members)
	return append(all, firstOnly(specPath, members, append(presentSources(specPath, s), oldPersistent(specPath, s)...))...)
}

// presentSources checks the sources that a node or a controller here knows, and
// those of clouds.
func presentSources(specPath *field.Path, s *v1.PersistentVolumeSpec) errs {
	var all errs
	if h := s.HostPath; h != nil {
		all = append(all, hostPath(specPath.Child("hostPath"), h)...)
		if s.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle && path.Clean(h.Path) == "/" {
			all = append(all, field.Forbidden(specPath.Child("persistentVolumeReclaimPolicy"),
				"may not be 'recycle' for a hostPath mount of '/'"))
		}
	}
	if s.NFS != nil {
		all = append(all, nfs(specPath.Child("nfs"), s.NFS)...)
	}
	if l := s.Local; l != nil {
		if l.Path == "" {
			all = append(all, field.Required(specPath.Child("local", "path"), ""))
		} else {
			all = append(all, noBacksteps(specPath.Child("local", "path"), l.Path)...)
		}
		if s.NodeAffinity == nil {
			all = append(all, field.Required(specPath.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	}
	if c := s.CSI; c != nil {
		all = append(all, csiDriverName(specPath.Child("csi", "driver"), c.Driver)...)
		all = append(all, present(specPath.Child("csi", "volumeHandle"), c.VolumeHandle)...)
		for _, ref := range []struct {
			name string
			ref  *v1.SecretReference
		}{{"controllerPublishSecretRef", c.ControllerPublishSecretRef}, {"controllerExpandSecretRef", c.ControllerExpandSecretRef},
			{"nodePublishSecretRef", c.NodePublishSecretRef}, {"nodeExpandSecretRef", c.NodeExpandSecretRef},
			{"nodeStageSecretRef", c.NodeStageSecretRef}} {
			all = append(all, volumeSecret(specPath.Child("csi", ref.name), ref.ref)...)
		}
	}
	if f := s.FlexVolume; f != nil {
		all = append(all, flexVolume(specPath.Child("flexVolume"), f.Driver, f.Options)...)
	}
	if d := s.GCEPersistentDisk; d != nil {
		all = append(all, gceDisk(specPath.Child("persistentDisk"), d)...)
	}
	if d := s.AWSElasticBlockStore; d != nil {
		all = append(all, awsDisk(specPath.Child("awsElasticBlockStore"), d)...)
	}
	if f := s.FC; f != nil {
		all = append(all, fibreChannel(specPath.Child("fc"), f)...)
	}
	if c := s.Cinder; c != nil {
		all = append(all, present(specPath.Child("cinder", "volumeID"), c.VolumeID)...)
		all = append(all, volumeSecret(specPath.Child("cinder", "secretRef"), c.SecretRef)...)
	}
	if a := s.AzureFile; a != nil {
		all = append(all, present(specPath.Child("azureFile", "secretName"), a.SecretName)...)
		all = append(all, present(specPath.Child("azureFile", "shareName"), a.ShareName)...)
		if a.SecretNamespace != nil {
			all = append(all, present(specPath.Child("azureFile", "secretNamespace"), *a.SecretNamespace)...)
		}
	}
	if i := s.ISCSI; i != nil {
		chap := i.DiscoveryCHAPAuth || i.SessionCHAPAuth
		all = append(all, iscsi(specPath.Child("iscsi"), i.TargetPortal, i.IQN, i.Lun, i.InitiatorName, chap && i.SecretRef == nil)...)
		all = append(all, volumeSecret(specPath.Child("iscsi", "secretRef"), i.SecretRef)...)
	}
	return all
}

// volumeSecret wants a secret with its namespace, if there is a reference at all.
func volumeSecret(p *field.Path, ref *v1.SecretReference) errs {
	if ref == nil {
		return nil
	}
	return append(present(p.Child("name"), ref.Name), present(p.Child("namespace"), ref.Namespace)...)
}

func PersistentVolumeUpdate(changed, old *v1.PersistentVolume) errs {
	all := PersistentVolume(changed)
	now, before := changed.Spec.PersistentVolumeSource.DeepCopy(), old.Spec.PersistentVolumeSource.DeepCopy()
	if now.CSI != nil && before.CSI != nil {
		// The secrets that are needed to make a volume larger may come later;
		// once there, they stay.
		if before.CSI.ControllerExpandSecretRef == nil {
			now.CSI.ControllerExpandSecretRef = nil
		}
		if before.CSI.NodeExpandSecretRef == nil {
			now.CSI.NodeExpandSecretRef = nil
		}
	}
	if !equality.Semantic.DeepEqual(now, before) {
		all = append(all, field.Forbidden(specPath.Child("persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(*before, *now))))
	}
	all = append(all, immutable(field.NewPath("volumeMode"), changed.Spec.VolumeMode, old.Spec.VolumeMode)...)
	if old.Spec.NodeAffinity != nil && !relabelled(changed.Spec.NodeAffinity, old.Spec.NodeAffinity) {
		all = append(all, immutable(field.NewPath("nodeAffinity"), changed.Spec.NodeAffinity, old.Spec.NodeAffinity)...)
	}
	return append(all, attributesClassChange(changed.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName)...)
}

// relabelled says whether now differs from before by stable labels in place of
// those of the beta only.
func relabelled(now, before *v1.VolumeNodeAffinity) bool {
	if now == nil || now.Required == nil || before.Required == nil ||
		len(now.Required.NodeSelectorTerms) != len(before.Required.NodeSelectorTerms) {
		return false
	}
	moved := before.DeepCopy()
	for i := range moved.Required.NodeSelectorTerms {
		old, fresh := moved.Required.NodeSelectorTerms[i].MatchExpressions, now.Required.NodeSelectorTerms[i].MatchExpressions
		for k := range old {
			if k < len(fresh) && fresh[k].Key == stableLabels[old[k].Key] {
				old[k].Key = fresh[k].Key
			}
		}
	}
	return equality.Semantic.DeepEqual(now, moved)
}
