package validate

import (
	"fmt"
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

// PersistentVolumeClaimUpdate lets a claim get its volume, its class in
// retrospect, and, once bound, more room or another attributes class.
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

// claimClass lets a claim without a class get one, or the field take over from
// the annotation of old. It puts in rest what it has judged.
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

// attributesClassChange lets a class come and change, not go: the volume would
// keep what nothing names.
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

// stableLabels are the labels of nodes that took the place of labels of the beta.
var stableLabels = map[string]string{v1.LabelFailureDomainBetaZone: v1.LabelTopologyZone,
	v1.LabelFailureDomainBetaRegion: v1.LabelTopologyRegion,
	"beta.kubernetes.io/os":         v1.LabelOSStable, "beta.kubernetes.io/arch": v1.LabelArchStable,
	v1.LabelInstanceType: v1.LabelInstanceTypeStable}

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

// Bounds of the parameters of a class: how many, and how many bytes all keys
// and values may have together.
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

// minAllocatablePeriod is how often, at most, a node is asked again how many
// volumes fit, in seconds.
const minAllocatablePeriod = 10

const maxNodeID = 256

func PersistentVolumeClaim(c *v1.PersistentVolumeClaim) errs { return claimSpec(specPath, &c.Spec) }
