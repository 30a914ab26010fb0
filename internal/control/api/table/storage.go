package table

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	node "k8s.io/api/node/v1"
	resource "k8s.io/api/resource/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storage "k8s.io/api/storage/v1"
	storageutil "k8s.io/kubectl/pkg/util/storage"
)

var PersistentVolume = of(func(now time.Time, pv *v1.PersistentVolume) []any {
	claim := ""
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	phase := string(pv.Status.Phase)
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	return []any{pv.Name, capacity.String(), storageutil.GetAccessModesAsString(pv.Spec.AccessModes),
		string(pv.Spec.PersistentVolumeReclaimPolicy), phase, claim, storageutil.GetPersistentVolumeClass(pv),
		or(deref(pv.Spec.VolumeAttributesClassName), unset), pv.Status.Reason, created(now, pv),
		or(string(deref(pv.Spec.VolumeMode)), unset)}
}, nameColumn,
	text("Capacity", v1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
	text("Access Modes", v1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
	text("Reclaim Policy", v1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
	text("Status", v1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
	text("Claim", v1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
	text("StorageClass", v1.PersistentVolumeSpec{}.SwaggerDoc()["storageClassName"]),
	text("VolumeAttributesClass", v1.PersistentVolumeSpec{}.SwaggerDoc()["volumeAttributesClassName"]),
	text("Reason", v1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
	ageColumn,
	wide("VolumeMode", v1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]))

var PersistentVolumeClaim = of(func(now time.Time, c *v1.PersistentVolumeClaim) []any {
	phase := string(c.Status.Phase)
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	capacity, modes := "", ""
	if c.Spec.VolumeName != "" {
		modes = storageutil.GetAccessModesAsString(c.Status.AccessModes)
		size := c.Status.Capacity[v1.ResourceStorage]
		capacity = size.String()
	}
	return []any{c.Name, phase, c.Spec.VolumeName, capacity, modes, storageutil.GetPersistentVolumeClaimClass(c),
		or(deref(c.Spec.VolumeAttributesClassName), unset), created(now, c), or(string(deref(c.Spec.VolumeMode)), unset)}
}, nameColumn,
	text("Status", v1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
	text("Volume", v1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
	text("Capacity", v1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
	text("Access Modes", v1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
	text("StorageClass", v1.PersistentVolumeClaimSpec{}.SwaggerDoc()["storageClassName"]),
	text("VolumeAttributesClass", v1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeAttributesClassName"]),
	ageColumn,
	wide("VolumeMode", v1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]))

// isDefaultClass are the annotations, new and old, of the class that claims
// without one get.
var isDefaultClass = []string{"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"}

var StorageClass = of(func(now time.Time, c *storage.StorageClass) []any {
	name := c.Name
	for _, key := range isDefaultClass {
		if c.Annotations[key] == "true" {
			name = c.Name + " (default)"
		}
	}
	return []any{name, c.Provisioner, or(string(deref(c.ReclaimPolicy)), string(v1.PersistentVolumeReclaimDelete)),
		or(string(deref(c.VolumeBindingMode)), string(storage.VolumeBindingImmediate)), deref(c.AllowVolumeExpansion), created(now, c)}
}, nameColumn,
	text("Provisioner", storage.StorageClass{}.SwaggerDoc()["provisioner"]),
	text("ReclaimPolicy", storage.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
	text("VolumeBindingMode", storage.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
	text("AllowVolumeExpansion", storage.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]), ageColumn)

var CSINode = of(func(now time.Time, n *storage.CSINode) []any {
	return []any{n.Name, int64(len(n.Spec.Drivers)), created(now, n)}
}, nameColumn, number("Drivers", "Number of drivers on the node."), ageColumn)

var CSIDriver = of(func(now time.Time, d *storage.CSIDriver) []any {
	tokens := unset
	if len(d.Spec.TokenRequests) > 0 {
		audiences := make([]string, len(d.Spec.TokenRequests))
		for i, r := range d.Spec.TokenRequests {
			audiences[i] = r.Audience
		}
		tokens = strings.Join(audiences, ",")
	}
	modes := make([]string, len(d.Spec.VolumeLifecycleModes))
	for i, m := range d.Spec.VolumeLifecycleModes {
		modes[i] = string(m)
	}
	attach := d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
	return []any{d.Name, attach, deref(d.Spec.PodInfoOnMount), deref(d.Spec.StorageCapacity), tokens,
		deref(d.Spec.RequiresRepublish), joined(modes), created(now, d)}
}, nameColumn,
	boolean("AttachRequired", storage.CSIDriverSpec{}.SwaggerDoc()["attachRequired"]),
	boolean("PodInfoOnMount", storage.CSIDriverSpec{}.SwaggerDoc()["podInfoOnMount"]),
	boolean("StorageCapacity", storage.CSIDriverSpec{}.SwaggerDoc()["storageCapacity"]),
	text("TokenRequests", storage.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"]),
	boolean("RequiresRepublish", storage.CSIDriverSpec{}.SwaggerDoc()["requiresRepublish"]),
	text("Modes", storage.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"]), ageColumn)

var VolumeAttachment = of(func(now time.Time, a *storage.VolumeAttachment) []any {
	return []any{a.Name, a.Spec.Attacher, deref(a.Spec.Source.PersistentVolumeName), a.Spec.NodeName, a.Status.Attached, created(now, a)}
}, nameColumn,
	text("Attacher", storage.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"]),
	text("PV", storage.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
	text("Node", storage.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
	boolean("Attached", storage.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]), ageColumn)

var RuntimeClass = of(func(now time.Time, c *node.RuntimeClass) []any {
	return []any{c.Name, c.Handler, created(now, c)}
}, nameColumn, text("Handler", node.RuntimeClass{}.SwaggerDoc()["handler"]), ageColumn)

var PriorityClass = of(func(now time.Time, c *scheduling.PriorityClass) []any {
	return []any{c.Name, int64(c.Value), c.GlobalDefault, created(now, c), string(deref(c.PreemptionPolicy))}
}, nameColumn,
	number("Value", scheduling.PriorityClass{}.SwaggerDoc()["value"]),
	boolean("Global-Default", scheduling.PriorityClass{}.SwaggerDoc()["globalDefault"]),
	ageColumn,
	text("PreemptionPolicy", scheduling.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]))

var ResourceClaim = of(func(now time.Time, c *resource.ResourceClaim) []any {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation == nil && c.DeletionTimestamp == nil:
		states = append(states, "pending")
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return []any{c.Name, strings.Join(states, ","), created(now, c)}
}, nameColumn, text("State", "How far the claim has come."), ageColumn)

var ResourceSlice = of(func(now time.Time, s *resource.ResourceSlice) []any {
	return []any{s.Name, or(deref(s.Spec.NodeName), unset), s.Spec.Driver, s.Spec.Pool.Name, created(now, s)}
}, nameColumn,
	text("Node", resource.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
	text("Driver", resource.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
	text("Pool", resource.ResourcePool{}.SwaggerDoc()["name"]), ageColumn)

var DeviceClass = of(func(now time.Time, c *resource.DeviceClass) []any {
	return []any{c.Name, created(now, c)}
}, nameColumn, ageColumn)

var ResourceClaimTemplate = of(func(now time.Time, t *resource.ResourceClaimTemplate) []any {
	return []any{t.Name, created(now, t)}
}, nameColumn, ageColumn)

var VolumeAttributesClass = of(func(now time.Time, c *storage.VolumeAttributesClass) []any {
	return []any{c.Name, c.DriverName, created(now, c)}
}, nameColumn,
	text("DriverName", storage.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
	ageColumn)
