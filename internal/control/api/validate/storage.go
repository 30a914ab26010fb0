package validate

import (
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var storageKinds = []row{
	kind[storage.StorageClass, *storage.StorageClass]{scope: cluster, create: storageClassGood, update: storageClassUpdate},
	kind[storage.CSIDriver, *storage.CSIDriver]{scope: cluster, create: csiDriverGood, update: csiDriverUpdate},
	kind[storage.VolumeAttributesClass, *storage.VolumeAttributesClass]{scope: cluster, create: attributesClassGood, update: attributesClassUpdate},
	kind[storage.CSINode, *storage.CSINode]{scope: cluster, create: csiNodeGood, update: csiNodeUpdate},
	kind[storage.VolumeAttachment, *storage.VolumeAttachment]{scope: cluster, create: attachmentGood, update: func(changed, old *storage.VolumeAttachment) errs {
		return append(attachmentGood(changed), immutable(specPath, changed.Spec, old.Spec)...)
	}},
	kind[storage.CSIStorageCapacity, *storage.CSIStorageCapacity]{scope: namespaced, create: capacityGood, update: func(changed, old *storage.CSIStorageCapacity) errs {
		all := append(capacityGood(changed), immutable(field.NewPath("nodeTopology"), changed.NodeTopology, old.NodeTopology)...)
		return append(all, immutable(field.NewPath("storageClassName"), changed.StorageClassName, old.StorageClassName)...)
	}},
	kind[v1.PersistentVolume, *v1.PersistentVolume]{scope: cluster, create: persistentVolumeGood, update: persistentVolumeUpdate},
	kind[v1.PersistentVolumeClaim, *v1.PersistentVolumeClaim]{scope: namespaced, create: func(c *v1.PersistentVolumeClaim) errs { return claimSpec(specPath, &c.Spec) }, update: claimUpdate, status: claimStatus},
}

func accessModes(p *field.Path, modes []v1.PersistentVolumeAccessMode) errs {
	if len(modes) == 0 {
		return errs{field.Required(p, "at least 1 access mode is required")}
	}
	var all errs
	exclusive := false
	for _, m := range modes {
		all = append(all, oneOf(p, m, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOnce, v1.ReadWriteOncePod)...)
		exclusive = exclusive || m == v1.ReadWriteOncePod
	}
	if exclusive && len(modes) > 1 {
		all = append(all, field.Forbidden(p, "may not use ReadWriteOncePod with other access modes"))
	}
	return all
}

func volumeMode(p *field.Path, m *v1.PersistentVolumeMode) errs {
	return oneOfIfSet(p, m, v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)
}

// size wants an amount of storage above nothing.
func size(p *field.Path, list v1.ResourceList) errs {
	q, ok := list[v1.ResourceStorage]
	if !ok {
		return errs{field.Required(p.Key(string(v1.ResourceStorage)), "")}
	}
	if q.Sign() <= 0 {
		return errs{field.Invalid(p.Key(string(v1.ResourceStorage)), q.String(), "must be greater than zero")}
	}
	return nil
}

func claimSpec(p *field.Path, s *v1.PersistentVolumeClaimSpec) errs {
	all := accessModes(p.Child("accessModes"), s.AccessModes)
	all = append(all, selector(p.Child("selector"), s.Selector)...)
	all = append(all, size(p.Child("resources"), s.Resources.Requests)...)
	if limit, ok := s.Resources.Limits[v1.ResourceStorage]; ok {
		if request := s.Resources.Requests[v1.ResourceStorage]; request.Cmp(limit) > 0 {
			all = append(all, field.Invalid(p.Child("resources", "requests"), request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", v1.ResourceStorage, limit.String())))
		}
	}
	all = append(all, volumeMode(p.Child("volumeMode"), s.VolumeMode)...)
	for _, class := range []struct {
		name  string
		value *string
	}{{"storageClassName", s.StorageClassName}, {"volumeAttributesClassName", s.VolumeAttributesClassName}} {
		if deref(class.value) != "" {
			all = append(all, invalid(p.Child(class.name), *class.value, isSubdomain(*class.value))...)
		}
	}
	if d := s.DataSource; d != nil {
		all = append(all, dataSource(p.Child("dataSource"), d.Name, d.Kind, d.APIGroup)...)
	}
	if d := s.DataSourceRef; d != nil {
		all = append(all, dataSource(p.Child("dataSourceRef"), d.Name, d.Kind, d.APIGroup)...)
	}
	return all
}

func dataSource(p *field.Path, name, kind string, group *string) errs {
	all := present(p.Child("name"), name)
	all = append(all, present(p.Child("kind"), kind)...)
	if deref(group) == "" && kind != "" && kind != "PersistentVolumeClaim" {
		all = append(all, field.Invalid(p, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
	}
	return all
}

// claimUpdate lets a claim get its volume, its class in retrospect, and, once
// bound, more room or another attributes class.
func claimUpdate(changed, old *v1.PersistentVolumeClaim) errs {
	all := claimSpec(specPath, &changed.Spec)
	rest, before := changed.Spec.DeepCopy(), &old.Spec
	if before.VolumeName == "" {
		rest.VolumeName = before.VolumeName
	}
	if before.StorageClassName == nil && before.VolumeName == "" {
		rest.StorageClassName = before.StorageClassName
	}
	if old.Status.Phase == v1.ClaimBound {
		want, have := rest.Resources.Requests[v1.ResourceStorage], old.Status.Capacity[v1.ResourceStorage]
		asked := before.Resources.Requests[v1.ResourceStorage]
		if want.Cmp(asked) < 0 && want.Cmp(have) <= 0 {
			all = append(all, field.Forbidden(specPath.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
		}
		if want.Cmp(asked) != 0 {
			rest.Resources.Requests[v1.ResourceStorage] = asked
		}
		rest.VolumeAttributesClassName = before.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(rest, before) {
		all = append(all, field.Forbidden(specPath, fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(*before, *rest))))
	}
	return append(all, immutable(specPath.Child("volumeMode"), changed.Spec.VolumeMode, before.VolumeMode)...)
}

func claimStatus(changed, _ *v1.PersistentVolumeClaim) errs {
	at := field.NewPath("status", "capacity")
	var all errs
	for _, name := range sorted(changed.Status.Capacity) {
		all = append(all, quantity(at.Key(string(name)), name, changed.Status.Capacity[name])...)
	}
	return all
}

func persistentVolumeGood(pv *v1.PersistentVolume) errs {
	s := &pv.Spec
	all := accessModes(specPath.Child("accessModes"), s.AccessModes)
	if len(s.Capacity) == 0 {
		all = append(all, field.Required(specPath.Child("capacity"), ""))
	} else {
		all = append(all, size(specPath.Child("capacity"), s.Capacity)...)
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
	return append(all, persistentSource(s)...)
}

func persistentSource(s *v1.PersistentVolumeSpec) errs {
	all := exactlyOne(specPath, tooManyVolumeTypes, "must specify a volume type", []given{
		{"hostPath", s.HostPath != nil}, {"gcePersistentDisk", s.GCEPersistentDisk != nil}, {"awsElasticBlockStore", s.AWSElasticBlockStore != nil},
		{"glusterfs", s.Glusterfs != nil}, {"flocker", s.Flocker != nil}, {"nfs", s.NFS != nil}, {"rbd", s.RBD != nil}, {"quobyte", s.Quobyte != nil},
		{"cephFS", s.CephFS != nil}, {"iscsi", s.ISCSI != nil}, {"cinder", s.Cinder != nil}, {"fc", s.FC != nil}, {"flexVolume", s.FlexVolume != nil},
		{"azureFile", s.AzureFile != nil}, {"vsphereVolume", s.VsphereVolume != nil}, {"photonPersistentDisk", s.PhotonPersistentDisk != nil},
		{"portworxVolume", s.PortworxVolume != nil}, {"azureDisk", s.AzureDisk != nil}, {"scaleIO", s.ScaleIO != nil}, {"local", s.Local != nil},
		{"storageos", s.StorageOS != nil}, {"csi", s.CSI != nil}})
	if h := s.HostPath; h != nil {
		all = append(all, hostPath(specPath.Child("hostPath"), h)...)
		if s.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle && path.Clean(h.Path) == "/" {
			all = append(all, field.Forbidden(specPath.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
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
	}
	return all
}

func persistentVolumeUpdate(changed, old *v1.PersistentVolume) errs {
	all := persistentVolumeGood(changed)
	now, before := changed.Spec.PersistentVolumeSource.DeepCopy(), old.Spec.PersistentVolumeSource.DeepCopy()
	if now.CSI != nil && before.CSI != nil {
		// The secret that is needed to make a volume larger may come later.
		now.CSI.ControllerExpandSecretRef, before.CSI.ControllerExpandSecretRef = nil, nil
		now.CSI.NodeExpandSecretRef, before.CSI.NodeExpandSecretRef = nil, nil
	}
	if !equality.Semantic.DeepEqual(now, before) {
		all = append(all, field.Forbidden(specPath.Child("persistentvolumesource"), fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(*before, *now))))
	}
	all = append(all, immutable(specPath.Child("volumeMode"), changed.Spec.VolumeMode, old.Spec.VolumeMode)...)
	if old.Spec.NodeAffinity != nil {
		all = append(all, immutable(specPath.Child("nodeAffinity"), changed.Spec.NodeAffinity, old.Spec.NodeAffinity)...)
	}
	return all
}

func storageClassGood(c *storage.StorageClass) errs {
	all := provisioner(field.NewPath("provisioner"), c.Provisioner)
	all = append(all, parameters(c.Parameters, false)...)
	all = append(all, oneOfIfSet(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)...)
	if c.VolumeBindingMode == nil {
		all = append(all, field.Required(field.NewPath("volumeBindingMode"), ""))
	}
	all = append(all, oneOfIfSet(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, storage.VolumeBindingImmediate, storage.VolumeBindingWaitForFirstConsumer)...)
	for i := range c.AllowedTopologies {
		for k, e := range c.AllowedTopologies[i].MatchLabelExpressions {
			one := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(k)
			all = append(all, metavalidation.ValidateLabelName(e.Key, one.Child("key"))...)
			if len(e.Values) == 0 {
				all = append(all, field.Required(one.Child("values"), ""))
			}
		}
	}
	return all
}

func storageClassUpdate(changed, old *storage.StorageClass) errs {
	all := storageClassGood(changed)
	all = append(all, forbidChange([]given{
		{"parameters", !equality.Semantic.DeepEqual(changed.Parameters, old.Parameters)},
		{"provisioner", changed.Provisioner != old.Provisioner},
		{"reclaimPolicy", deref(changed.ReclaimPolicy) != deref(old.ReclaimPolicy)}})...)
	return append(all, immutable(field.NewPath("volumeBindingMode"), changed.VolumeBindingMode, old.VolumeBindingMode)...)
}

func provisioner(p *field.Path, name string) errs {
	return named(p, name, func(v string) []string { return validation.IsQualifiedName(strings.ToLower(v)) })
}

// Bounds of the parameters of a class: how many, and how many bytes all keys and values may have together.
const (
	maxParameters     = 512
	maxParameterBytes = 256 << 10
)

func parameters(m map[string]string, wanted bool) errs {
	p := field.NewPath("parameters")
	switch {
	case len(m) > maxParameters:
		return errs{field.TooLong(p, "", maxParameters)}
	case len(m) == 0 && wanted:
		return errs{field.Required(p, "must contain at least one key/value pair")}
	}
	var all errs
	total := 0
	for _, key := range sorted(m) {
		if key == "" {
			all = append(all, field.Invalid(p, key, "field can not be empty."))
		}
		total += len(key) + len(m[key])
	}
	if total > maxParameterBytes {
		all = append(all, field.TooLong(p, "", maxParameterBytes))
	}
	return all
}

func attributesClassGood(c *storage.VolumeAttributesClass) errs {
	return append(provisioner(field.NewPath("driverName"), c.DriverName), parameters(c.Parameters, true)...)
}

func attributesClassUpdate(changed, old *storage.VolumeAttributesClass) errs {
	return forbidChange([]given{{"driverName", changed.DriverName != old.DriverName},
		{"parameters", !equality.Semantic.DeepEqual(changed.Parameters, old.Parameters)}})
}

// forbidChange reports each field that changed and must not.
func forbidChange(fields []given) errs {
	var all errs
	for _, f := range fields {
		if f.set {
			all = append(all, field.Forbidden(field.NewPath(f.name), fmt.Sprintf("updates to %s are forbidden.", f.name)))
		}
	}
	return all
}

const maxDriverName = 63

func csiDriverName(p *field.Path, name string) errs {
	if name == "" {
		return errs{field.Required(p, "")}
	}
	var all errs
	if len(name) > maxDriverName {
		all = append(all, field.TooLong(p, name, maxDriverName))
	}
	return append(all, invalid(p, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func csiDriverGood(d *storage.CSIDriver) errs {
	all := csiDriverName(field.NewPath("metadata", "name"), d.Name)
	all = append(all, oneOfIfSet(specPath.Child("fsGroupPolicy"), d.Spec.FSGroupPolicy, storage.ReadWriteOnceWithFSTypeFSGroupPolicy, storage.FileFSGroupPolicy, storage.NoneFSGroupPolicy)...)
	audiences := unique[string]{}
	for i, r := range d.Spec.TokenRequests {
		at := specPath.Child("tokenRequests").Index(i)
		all = append(all, audiences.add(at.Child("audience"), r.Audience)...)
		if seconds := r.ExpirationSeconds; seconds != nil && (*seconds < minTokenLifetime || *seconds > maxTokenLifetime) {
			all = append(all, field.Invalid(at.Child("expirationSeconds"), *seconds, "must be between 10 minutes and 2^32 seconds"))
		}
	}
	for _, m := range d.Spec.VolumeLifecycleModes {
		all = append(all, oneOf(specPath.Child("volumeLifecycleModes"), m, storage.VolumeLifecyclePersistent, storage.VolumeLifecycleEphemeral)...)
	}
	return all
}

func csiDriverUpdate(changed, old *storage.CSIDriver) errs {
	all := csiDriverGood(changed)
	all = append(all, immutable(specPath.Child("attachRequired"), changed.Spec.AttachRequired, old.Spec.AttachRequired)...)
	all = append(all, immutable(specPath.Child("fsGroupPolicy"), changed.Spec.FSGroupPolicy, old.Spec.FSGroupPolicy)...)
	return append(all, immutable(specPath.Child("volumeLifecycleModes"), changed.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)...)
}

const maxNodeID = 256

func csiNodeGood(n *storage.CSINode) errs {
	var all errs
	names := unique[string]{}
	for i, d := range n.Spec.Drivers {
		at := specPath.Child("drivers").Index(i)
		all = append(all, csiDriverName(at.Child("name"), d.Name)...)
		all = append(all, names.add(at.Child("name"), d.Name)...)
		all = append(all, present(at.Child("nodeID"), d.NodeID)...)
		if len(d.NodeID) > maxNodeID {
			all = append(all, field.Invalid(at.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if d.Allocatable != nil {
			all = append(all, notNegativeIfSet(at.Child("allocatable", "count"), d.Allocatable.Count)...)
		}
		keys := unique[string]{}
		for k, key := range d.TopologyKeys {
			all = append(all, metavalidation.ValidateLabelName(key, at.Child("topologyKeys").Index(k))...)
			all = append(all, keys.add(at.Child("topologyKeys").Index(k), key)...)
		}
	}
	return all
}

func csiNodeUpdate(changed, old *storage.CSINode) errs {
	all := csiNodeGood(changed)
	before := map[string]storage.CSINodeDriver{}
	for _, d := range old.Spec.Drivers {
		before[d.Name] = d
	}
	for i, d := range changed.Spec.Drivers {
		o, known := before[d.Name]
		// How many volumes fit may be found out anew, who the node is may not.
		o.Allocatable = d.Allocatable
		if known && !equality.Semantic.DeepEqual(o, d) {
			all = append(all, field.Invalid(specPath.Child("drivers").Index(i), d.Name, "field is immutable"))
		}
	}
	return all
}

func attachmentGood(a *storage.VolumeAttachment) errs {
	all := csiDriverName(specPath.Child("attacher"), a.Spec.Attacher)
	all = append(all, named(specPath.Child("nodeName"), a.Spec.NodeName, isSubdomain)...)
	at, s := specPath.Child("source"), &a.Spec.Source
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		all = append(all, field.Required(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		all = append(all, field.Forbidden(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil:
		all = append(all, present(at.Child("persistentVolumeName"), *s.PersistentVolumeName)...)
	}
	return all
}

func capacityGood(c *storage.CSIStorageCapacity) errs {
	all := named(field.NewPath("storageClassName"), c.StorageClassName, isSubdomain)
	for _, q := range []struct {
		name     string
		negative bool
	}{{"capacity", c.Capacity != nil && c.Capacity.Sign() < 0}, {"maximumVolumeSize", c.MaximumVolumeSize != nil && c.MaximumVolumeSize.Sign() < 0}} {
		if q.negative {
			all = append(all, field.Invalid(field.NewPath(q.name), field.OmitValueType{}, "must be greater than or equal to 0"))
		}
	}
	return append(all, selector(field.NewPath("nodeTopology"), c.NodeTopology)...)
}
