// Package volumes serves PersistentVolumes and PersistentVolumeClaims: both start Pending, under the finalizer that
// keeps them while they are in use.
package volumes

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/storebase"
)

// The finalizers are removed by the protection controllers once nothing uses the object.
const (
	VolumeProtection = "kubernetes.io/pv-protection"
	ClaimProtection  = "kubernetes.io/pvc-protection"
)

// Deps are the collaborators of the volume storages.
type Deps struct{ Kit storebase.Kit }

// NewStorage builds the endpoints of persistentvolumes and persistentvolumeclaims.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	out := map[string]rest.Storage{}
	if err := addVolumes(out, opts, deps.Kit); err != nil {
		return nil, err
	}
	return out, addClaims(out, opts, deps.Kit)
}

func addVolumes(out map[string]rest.Storage, opts generic.RESTOptionsGetter, kit storebase.Kit) error {
	base := kit.Base(false)
	base.PrepareNew = func(_ context.Context, obj runtime.Object) {
		pv := obj.(*v1.PersistentVolume)
		now := metav1.Now()
		pv.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending, LastPhaseTransitionTime: &now}
		protect(&pv.Finalizers, VolumeProtection)
	}
	base.PrepareChange = func(_ context.Context, obj, old runtime.Object) {
		obj.(*v1.PersistentVolume).Status = old.(*v1.PersistentVolume).Status
	}
	base.Reset = storebase.Fields("v1", []string{"status"})
	store, err := kit.NewStore(opts, storebase.Spec{
		Resource: v1.Resource("persistentvolumes"), Singular: "persistentvolume",
		New:           func() runtime.Object { return &v1.PersistentVolume{} },
		NewList:       func() runtime.Object { return &v1.PersistentVolumeList{} },
		Strategy:      base,
		ReturnDeleted: true,
	})
	if err != nil {
		return err
	}
	status := kit.StatusOf(base, func(_ context.Context, obj, old runtime.Object) {
		pv, was := obj.(*v1.PersistentVolume), old.(*v1.PersistentVolume)
		pv.Spec = was.Spec
		turned(&pv.Status, &was.Status, metav1.Now())
	}, storebase.Fields("v1", []string{"spec"}))
	out["persistentvolumes"] = &storebase.Resource{Store: store, Short: []string{"pv"}}
	out["persistentvolumes/status"] = storebase.NewSubresource(store, status)
	return nil
}

func addClaims(out map[string]rest.Storage, opts generic.RESTOptionsGetter, kit storebase.Kit) error {
	base := kit.Base(true)
	base.PrepareNew = func(_ context.Context, obj runtime.Object) {
		claim := obj.(*v1.PersistentVolumeClaim)
		claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
		protect(&claim.Finalizers, ClaimProtection)
		dropForeignSource(&claim.Spec, nil)
		dropSources(&claim.Spec)
		alignSources(&claim.Spec)
	}
	base.PrepareChange = func(_ context.Context, obj, old runtime.Object) {
		claim, was := obj.(*v1.PersistentVolumeClaim), old.(*v1.PersistentVolumeClaim)
		claim.Status = was.Status
		dropForeignSource(&claim.Spec, &was.Spec)
		alignSources(&claim.Spec)
	}
	base.Reset = storebase.Fields("v1", []string{"status"})
	store, err := kit.NewStore(opts, storebase.Spec{
		Resource: v1.Resource("persistentvolumeclaims"), Singular: "persistentvolumeclaim",
		New:           func() runtime.Object { return &v1.PersistentVolumeClaim{} },
		NewList:       func() runtime.Object { return &v1.PersistentVolumeClaimList{} },
		Strategy:      base,
		ReturnDeleted: true,
	})
	if err != nil {
		return err
	}
	status := kit.StatusOf(base, func(_ context.Context, obj, old runtime.Object) {
		obj.(*v1.PersistentVolumeClaim).Spec = old.(*v1.PersistentVolumeClaim).Spec
	}, storebase.Fields("v1", []string{"spec"}))
	out["persistentvolumeclaims"] = &storebase.Resource{Store: store, Short: []string{"pvc"}}
	out["persistentvolumeclaims/status"] = storebase.NewSubresource(store, status)
	return nil
}

// turned notes when the phase changed, unless the writer does.
func turned(s, was *v1.PersistentVolumeStatus, now metav1.Time) {
	if s.Phase == was.Phase {
		return
	}
	if s.LastPhaseTransitionTime == nil || (was.LastPhaseTransitionTime != nil && s.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)) {
		s.LastPhaseTransitionTime = &now
	}
}

func protect(finalizers *[]string, name string) {
	if !slices.Contains(*finalizers, name) {
		*finalizers = append(*finalizers, name)
	}
}

// dropSources forgets a source of the older field that is neither a claim nor a snapshot, which nothing would fill the
// volume from. Upstream does so without a word.
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

// dropForeignSource removes the namespace of a data source: only the gate CrossNamespaceVolumeDataSource (alpha, not
// offered) allows a source in another namespace. A claim stored with one keeps it.
func dropForeignSource(spec, old *v1.PersistentVolumeClaimSpec) {
	kept := old != nil && old.DataSourceRef != nil && old.DataSourceRef.Namespace != nil
	if spec.DataSourceRef != nil && !kept {
		spec.DataSourceRef.Namespace = nil
	}
}

// alignSources keeps dataSource and dataSourceRef, the field that replaces it, equal; a reference into another
// namespace exists in the new field only.
func alignSources(spec *v1.PersistentVolumeClaimSpec) {
	switch {
	case spec.DataSource != nil && spec.DataSourceRef == nil:
		spec.DataSourceRef = &v1.TypedObjectReference{
			APIGroup: spec.DataSource.APIGroup, Kind: spec.DataSource.Kind, Name: spec.DataSource.Name,
		}
	case spec.DataSourceRef != nil && spec.DataSource == nil && (spec.DataSourceRef.Namespace == nil || *spec.DataSourceRef.Namespace == ""):
		spec.DataSource = &v1.TypedLocalObjectReference{
			APIGroup: spec.DataSourceRef.APIGroup, Kind: spec.DataSourceRef.Kind, Name: spec.DataSourceRef.Name,
		}
	}
}
