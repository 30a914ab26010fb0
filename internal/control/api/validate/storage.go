package validate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

// PersistentVolumeClaimUpdate lets a claim get its volume, its class in retrospect, and, once
// bound, more room or another attributes class.
func PersistentVolumeClaimUpdate(changed, old *v1.PersistentVolumeClaim) errs {
	all := claimSpec(specPath, &changed.Spec)
	rest, before := changed.Spec.DeepCopy(), &old.Spec
	if before.VolumeName == "" {
		rest.VolumeName = before.VolumeName
	}
	all = append(all, claimClass(rest, changed, old)...)
	want, have := changed.Spec.Resources.Requests[v1.ResourceStorage], old.Status.Capacity[v1.ResourceStorage]
	asked := before.Resources.Requests[v1.ResourceStorage]
	if changed.Status.Phase == v1.ClaimBound && rest.Resources.Requests != nil && want.Cmp(asked) != 0 {
		rest.Resources.Requests[v1.ResourceStorage] = asked
	}
	if want.Cmp(asked) < 0 && want.Cmp(have) <= 0 {
		all = append(all, field.Forbidden(specPath.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	rest.VolumeAttributesClassName = before.VolumeAttributesClassName
	all = append(all, attributesClassChange(changed.Spec.VolumeAttributesClassName, before.VolumeAttributesClassName)...)
	if !equality.Semantic.DeepEqual(rest, before) {
		all = append(all, field.Forbidden(specPath,
			fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v",
				diff.Diff(*before, *rest))))
	}
	return append(all, immutable(field.NewPath("volumeMode"), changed.Spec.VolumeMode, before.VolumeMode)...)
}

// claimClass lets a claim without a class get one, or the field take over from the annotation of old. It puts in rest
// what it has judged.
func claimClass(rest *v1.PersistentVolumeClaimSpec, changed, old *v1.PersistentVolumeClaim) errs {
	was, annotated := old.Annotations[v1.BetaStorageClassAnnotation]
	now, still := changed.Annotations[v1.BetaStorageClassAnnotation]
	class := changed.Spec.StorageClassName
	if annotated && old.Spec.StorageClassName == nil && class != nil && *class == was && (!still || now == was) {
		rest.StorageClassName = nil
		return nil
	}
	var all errs
	if now != was {
		all = append(all, field.Invalid(field.NewPath("metadata", "annotations", v1.BetaStorageClassAnnotation), now, "field is immutable"))
	}
	if class != nil && old.Spec.StorageClassName == nil && (!annotated || *class == was) {
		rest.StorageClassName = nil
	}
	return all
}

// attributesClassChange lets a class come and change, not go: the volume would keep what nothing names.
func attributesClassChange(now, was *string) errs {
	at := specPath.Child("volumeAttributesClassName")
	switch {
	case was == nil:
		return nil
	case now == nil:
		return errs{field.Forbidden(at, "update from non-nil value to nil is forbidden")}
	case *now == "" && *was != "":
		return errs{field.Forbidden(at, "update from non-nil value to an empty string is forbidden")}
	}
	return nil
}

func PersistentVolumeClaimStatusUpdate(changed, _ *v1.PersistentVolumeClaim) errs {
	at := field.NewPath("status", "capacity")
	var all errs
	for _, name := range sorted(changed.Status.Capacity) {
		all = append(all, quantity(at.Key(string(name)), name, changed.Status.Capacity[name])...)
	}
	states := field.NewPath("status", "allocatedResourceStatus")
	for _, name := range sorted(changed.Status.AllocatedResourceStatuses) {
		all = append(all, claimResource(states, name)...)
		all = append(all, oneOf(states, changed.Status.AllocatedResourceStatuses[name], v1.PersistentVolumeClaimControllerResizeInProgress,
			v1.PersistentVolumeClaimControllerResizeInfeasible, v1.PersistentVolumeClaimNodeResizePending,
			v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible)...)
	}
	amounts := field.NewPath("status", "allocatedResources")
	for _, name := range sorted(changed.Status.AllocatedResources) {
		if bad := claimResource(amounts, name); len(bad) > 0 {
			all = append(all, bad...)
			continue
		}
		all = append(all, quantity(amounts.Key(string(name)), v1.ResourceStorage, changed.Status.AllocatedResources[name])...)
	}
	return all
}

// claimResource wants storage, or a resource of another party's domain.
func claimResource(p *field.Path, name v1.ResourceName) errs {
	if bad := validation.IsQualifiedName(string(name)); len(bad) > 0 {
		return invalid(p, name, bad)
	}
	if native := !strings.Contains(string(name), "/") || strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix); native &&
		name != v1.ResourceStorage {
		return errs{field.NotSupported(p, name, []v1.ResourceName{v1.ResourceStorage})}
	}
	return nil
}

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
	all := exactlyOne(specPath, tooManyVolumeTypes, "must specify a volume type", []given{
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
		{"storageos", s.StorageOS != nil}, {"csi", s.CSI != nil}})
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
		// The secrets that are needed to make a volume larger may come later; once there, they stay.
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

// stableLabels are the labels of nodes that took the place of labels of the beta.
var stableLabels = map[string]string{v1.LabelFailureDomainBetaZone: v1.LabelTopologyZone,
	v1.LabelFailureDomainBetaRegion: v1.LabelTopologyRegion,
	"beta.kubernetes.io/os":         v1.LabelOSStable, "beta.kubernetes.io/arch": v1.LabelArchStable,
	v1.LabelInstanceType: v1.LabelInstanceTypeStable}

// relabelled says whether now differs from before by stable labels in place of those of the beta only.
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

func StorageClass(c *storage.StorageClass) errs {
	all := provisioner(field.NewPath("provisioner"), c.Provisioner)
	all = append(all, parameters(c.Parameters, false)...)
	if deref(c.ReclaimPolicy) != "" {
		all = append(all, oneOfIfSet(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, v1.PersistentVolumeReclaimDelete,
			v1.PersistentVolumeReclaimRetain)...)
	}
	if c.VolumeBindingMode == nil {
		all = append(all, field.Required(field.NewPath("volumeBindingMode"), ""))
	}
	all = append(all, oneOfIfSet(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, storage.VolumeBindingImmediate,
		storage.VolumeBindingWaitForFirstConsumer)...)
	terms := map[string]bool{}
	for i := range c.AllowedTopologies {
		if text := topologyText(&c.AllowedTopologies[i]); terms[text] {
			all = append(all, field.Duplicate(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions"), ""))
		} else {
			terms[text] = true
		}
		keys := unique[string]{}
		for k, e := range c.AllowedTopologies[i].MatchLabelExpressions {
			one := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(k)
			all = append(all, metavalidation.ValidateLabelName(e.Key, one.Child("key"))...)
			all = append(all, keys.add(one.Child("key"), e.Key)...)
			if len(e.Values) == 0 {
				all = append(all, field.Required(one.Child("values"), ""))
			}
			values := unique[string]{}
			for n, v := range e.Values {
				all = append(all, values.add(one.Child("values").Index(n), v)...)
			}
		}
	}
	return all
}

// topologyText is the same for terms that mean the same.
func topologyText(t *v1.TopologySelectorTerm) string {
	var parts []string
	for _, e := range t.MatchLabelExpressions {
		parts = append(parts, e.Key+"="+strings.Join(slices.Sorted(slices.Values(e.Values)), ","))
	}
	slices.Sort(parts)
	return strings.Join(parts, ";")
}

func StorageClassUpdate(changed, old *storage.StorageClass) errs {
	all := StorageClass(changed)
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

func VolumeAttributesClass(c *storage.VolumeAttributesClass) errs {
	return append(provisioner(field.NewPath("driverName"), c.DriverName), parameters(c.Parameters, true)...)
}

func VolumeAttributesClassUpdate(changed, old *storage.VolumeAttributesClass) errs {
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

func CSIDriver(d *storage.CSIDriver) errs {
	all := oneOfIfSet(specPath.Child("fsGroupPolicy"), d.Spec.FSGroupPolicy, storage.ReadWriteOnceWithFSTypeFSGroupPolicy,
		storage.FileFSGroupPolicy, storage.NoneFSGroupPolicy)
	audiences := unique[string]{}
	for i, r := range d.Spec.TokenRequests {
		at := specPath.Child("tokenRequests").Index(i)
		all = append(all, audiences.add(at.Child("audience"), r.Audience)...)
		if seconds := r.ExpirationSeconds; seconds != nil && (*seconds < minTokenLifetime || *seconds > maxTokenLifetime) {
			all = append(all, field.Invalid(at.Child("expirationSeconds"), *seconds, "must be between 10 minutes and 2^32 seconds"))
		}
	}
	if n := d.Spec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < minAllocatablePeriod {
		all = append(all, field.Invalid(specPath.Child("nodeAllocatableUpdatePeriodSeconds"), *n,
			fmt.Sprintf("must be greater than or equal to %d seconds", minAllocatablePeriod)))
	}
	if deref(d.Spec.ServiceAccountTokenInSecrets) && len(d.Spec.TokenRequests) == 0 {
		all = append(all, field.Invalid(specPath.Child("serviceAccountTokenInSecrets"), true,
			"serviceAccountTokenInSecrets should be set only when tokenRequests is set"))
	}
	for _, m := range d.Spec.VolumeLifecycleModes {
		all = append(all, oneOf(specPath.Child("volumeLifecycleModes"), m, storage.VolumeLifecyclePersistent,
			storage.VolumeLifecycleEphemeral)...)
	}
	return all
}

// minAllocatablePeriod is how often, at most, a node is asked again how many volumes fit, in seconds.
const minAllocatablePeriod = 10

func CSIDriverUpdate(changed, old *storage.CSIDriver) errs {
	all := CSIDriver(changed)
	all = append(all, immutable(specPath.Child("attachedRequired"), changed.Spec.AttachRequired, old.Spec.AttachRequired)...)
	return append(all, immutable(specPath.Child("volumeLifecycleModes"), changed.Spec.VolumeLifecycleModes,
		old.Spec.VolumeLifecycleModes)...)
}

const maxNodeID = 256

func CSINode(n *storage.CSINode) errs {
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

func CSINodeUpdate(changed, old *storage.CSINode) errs {
	all := CSINode(changed)
	before := map[string]storage.CSINodeDriver{}
	for _, d := range old.Spec.Drivers {
		before[d.Name] = d
	}
	for i, d := range changed.Spec.Drivers {
		o, known := before[d.Name]
		// How many volumes fit may be found out again, who the node is may not.
		o.Allocatable = d.Allocatable
		if known && !equality.Semantic.DeepEqual(o, d) {
			all = append(all, field.Invalid(specPath.Child("drivers").Index(i), d.Name, "field is immutable"))
		}
	}
	return all
}

func VolumeAttachment(a *storage.VolumeAttachment) errs {
	all := csiDriverName(specPath.Child("attacher"), a.Spec.Attacher)
	all = append(all, named(specPath.Child("nodeName"), a.Spec.NodeName, isSubdomain)...)
	at, s := specPath.Child("source"), &a.Spec.Source
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		all = append(all, field.Required(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		all = append(all, field.Forbidden(at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil:
		all = append(all, named(at.Child("persistentVolumeName"), *s.PersistentVolumeName, isSubdomain)...)
	default:
		all = append(all, inlineVolume(at.Child("inlineVolumeSpec"), s.InlineVolumeSpec)...)
	}
	return all
}

// inlineVolume checks a volume that a pod carries itself: of CSI, and with nothing that only a volume of its own has.
func inlineVolume(p *field.Path, s *v1.PersistentVolumeSpec) errs {
	all := forbid(p, "may not be specified in the context of inline volumes", []given{{"claimRef", s.ClaimRef != nil},
		{"capacity", len(s.Capacity) > 0},
		{"nodeAffinity", s.NodeAffinity != nil}, {"storageClassName", s.StorageClassName != ""}})
	if s.CSI == nil {
		all = append(all, field.Required(p.Child("csi"), "has to be specified in the context of inline volumes"))
	}
	if r := s.PersistentVolumeReclaimPolicy; r != "" && r != v1.PersistentVolumeReclaimRetain {
		all = append(all, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may only be Retain in the context of inline volumes"))
	}
	if m := s.VolumeMode; m != nil && *m != v1.PersistentVolumeFilesystem {
		all = append(all, field.Forbidden(p.Child("volumeMode"),
			"may not specify volumeMode other than Filesystem in the context of inline volumes"))
	}
	all = append(all, accessModes(p.Child("accessModes"), s.AccessModes)...)
	return append(all, persistentSource(p, s)...)
}

func CSIStorageCapacity(c *storage.CSIStorageCapacity) errs {
	all := named(field.NewPath("storageClassName"), c.StorageClassName, isSubdomain)
	for _, q := range []struct {
		name     string
		negative bool
	}{{"capacity", c.Capacity != nil && c.Capacity.Sign() < 0}} {
		if q.negative {
			all = append(all, field.Invalid(field.NewPath(q.name), field.OmitValueType{}, "must be greater than or equal to 0"))
		}
	}
	return append(all, selector(field.NewPath("nodeTopology"), c.NodeTopology)...)
}

func PersistentVolumeClaim(c *v1.PersistentVolumeClaim) errs { return claimSpec(specPath, &c.Spec) }

func VolumeAttachmentUpdate(changed, old *storage.VolumeAttachment) errs {
	return append(VolumeAttachment(changed), immutable(specPath, changed.Spec, old.Spec)...)
}

func CSIStorageCapacityUpdate(changed, old *storage.CSIStorageCapacity) errs {
	all := append(CSIStorageCapacity(changed), immutable(field.NewPath("nodeTopology"), changed.NodeTopology, old.NodeTopology)...)
	return append(all, immutable(field.NewPath("storageClassName"), changed.StorageClassName, old.StorageClassName)...)
}
