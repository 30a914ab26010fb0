package core

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var persistentVolume = registry.Kind[*v1.PersistentVolume]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "PersistentVolume",
	Resource: "persistentvolumes", ShortNames: []string{"pv"},
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	HasStatus: true,
	Default:   defaults.PersistentVolume,
	Validate:  validate.PersistentVolume, ValidateUpdate: validate.PersistentVolumeUpdate,
	PrepareForCreate: func(_ context.Context, pv *v1.PersistentVolume) {
		now := metav1.Now()
		pv.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending, LastPhaseTransitionTime: &now}
		addFinalizer(&pv.Finalizers, VolumeProtection)
	},
	PrepareForStatusUpdate: func(_ context.Context, pv, old *v1.PersistentVolume) {
		noteTransition(&pv.Status, &old.Status, metav1.Now())
	},
	Table: table.PersistentVolume,
}

// VolumeProtection is removed by the protection controller once nothing uses the volume.
const VolumeProtection = "kubernetes.io/pv-protection"

// noteTransition notes when the phase changed, unless the writer does.
func noteTransition(s, was *v1.PersistentVolumeStatus, now metav1.Time) {
	if s.Phase == was.Phase {
		return
	}
	if s.LastPhaseTransitionTime == nil || (was.LastPhaseTransitionTime != nil &&
		s.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)) {
		s.LastPhaseTransitionTime = &now
	}
}

func addFinalizer(finalizers *[]string, name string) {
	if !slices.Contains(*finalizers, name) {
		*finalizers = append(*finalizers, name)
	}
}
