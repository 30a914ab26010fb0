package core

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var persistentVolumeClaim = registry.Kind[*v1.PersistentVolumeClaim]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "PersistentVolumeClaim",
	Resource: "persistentvolumeclaims", ShortNames: []string{"pvc"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	HasStatus: true,
	Default:   defaults.PersistentVolumeClaim,
	Validate:  validate.PersistentVolumeClaim, ValidateUpdate: validate.PersistentVolumeClaimUpdate,
	ValidateStatusUpdate: validate.PersistentVolumeClaimStatusUpdate,
	PrepareForCreate: func(_ context.Context, c *v1.PersistentVolumeClaim) {
		c.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
		addFinalizer(&c.Finalizers, ClaimProtection)
		dropForeignSource(&c.Spec, nil)
		dropSources(&c.Spec)
		alignSources(&c.Spec)
	},
	PrepareForUpdate: func(_ context.Context, c, old *v1.PersistentVolumeClaim) {
		dropForeignSource(&c.Spec, &old.Spec)
		alignSources(&c.Spec)
	},
	Table: table.PersistentVolumeClaim,
}

// ClaimProtection is removed by the protection controller once nothing uses the claim.
const ClaimProtection = "kubernetes.io/pvc-protection"

// dropSources forgets a source of the older field that is neither a claim nor a
// snapshot, which nothing would fill the volume from. Upstream does so without
// a word.
func dropSources(spec *v1.PersistentVolumeClaimSpec) {
	if d := spec.DataSource; d != nil {
		group := ""
		if d.APIGroup != nil {
			group = *d.APIGroup
		}
		claim := d.Kind == "PersistentVolumeClaim" && group == ""
		if snapshot := d.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"; !claim && !snapshot {
			spec.DataSource = nil
		}
	}
}

// dropForeignSource removes the namespace of a data source: only the gate
// CrossNamespaceVolumeDataSource (alpha, not offered) allows a source in
// another namespace. A claim stored with one keeps it.
func dropForeignSource(spec, old *v1.PersistentVolumeClaimSpec) {
	kept := old != nil && old.DataSourceRef != nil && old.DataSourceRef.Namespace != nil
	if spec.DataSourceRef != nil && !kept {
		spec.DataSourceRef.Namespace = nil
	}
}

// alignSources keeps dataSource and dataSourceRef, the field that replaces it,
// equal; a reference into another namespace exists in the new field only.
func alignSources(spec *v1.PersistentVolumeClaimSpec) {
	switch {
	case spec.DataSource != nil && spec.DataSourceRef == nil:
		spec.DataSourceRef = &v1.TypedObjectReference{
			APIGroup: spec.DataSource.APIGroup, Kind: spec.DataSource.Kind, Name: spec.DataSource.Name,
		}
	case spec.DataSourceRef != nil && spec.DataSource == nil && (spec.DataSourceRef.Namespace == nil ||
		*spec.DataSourceRef.Namespace == ""):
		spec.DataSource = &v1.TypedLocalObjectReference{
			APIGroup: spec.DataSourceRef.APIGroup, Kind: spec.DataSourceRef.Kind, Name: spec.DataSourceRef.Name,
		}
	}
}
