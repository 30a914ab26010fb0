package validate

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

func CSIDriverUpdate(changed, old *storage.CSIDriver) errs {
	all := CSIDriver(changed)
	all = append(all, immutable(specPath.Child("attachedRequired"), changed.Spec.AttachRequired, old.Spec.AttachRequired)...)
	return append(all, immutable(specPath.Child("volumeLifecycleModes"), changed.Spec.VolumeLifecycleModes,
		old.Spec.VolumeLifecycleModes)...)
}

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

// inlineVolume checks a volume that a pod carries itself: of CSI, and with
// nothing that only a volume of its own has.
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

// VolumeAttachmentStatusUpdate checks what the attacher tells.
func VolumeAttachmentStatusUpdate(changed, _ *storage.VolumeAttachment) errs {
	p, s := field.NewPath("status"), &changed.Status
	var all errs
	size := 0
	for key, value := range s.AttachmentMetadata {
		size += len(key) + len(value)
	}
	if size > maxAttachmentMetadata {
		all = append(all, field.TooLong(p.Child("attachmentMetadata"), "", maxAttachmentMetadata))
	}
	for _, e := range []struct {
		name string
		err  *storage.VolumeError
	}{{"attachError", s.AttachError}, {"detachError", s.DetachError}} {
		if e.err == nil {
			continue
		}
		if len(e.err.Message) > maxVolumeError {
			all = append(all, field.TooLong(p.Child(e.name, "message"), "", maxVolumeError))
		}
		if code := e.err.ErrorCode; code != nil && *code < 0 {
			all = append(all, field.Invalid(p.Child(e.name, "errorCode"), *code, validation.InclusiveRangeError(0, math.MaxInt32)))
		}
	}
	return all
}

// Bounds of what an attacher tells, in bytes.
const (
	maxAttachmentMetadata = 256 << 10
	maxVolumeError        = 1024
)

func VolumeAttachmentUpdate(changed, old *storage.VolumeAttachment) errs {
	return append(VolumeAttachment(changed), immutable(specPath, changed.Spec, old.Spec)...)
}

func CSIStorageCapacityUpdate(changed, old *storage.CSIStorageCapacity) errs {
	all := append(CSIStorageCapacity(changed), immutable(field.NewPath("nodeTopology"), changed.NodeTopology, old.NodeTopology)...)
	return append(all, immutable(field.NewPath("storageClassName"), changed.StorageClassName, old.StorageClassName)...)
}
