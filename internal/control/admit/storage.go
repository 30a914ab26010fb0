package admit

import (
	"context"
	"errors"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Names of the admission of storage objects.
const (
	// InUse keeps volumes and claims from vanishing while they are in use.
	StorageObjectInUseProtection = "StorageObjectInUseProtection"
	// PersistentVolumeClaimResize lets claims grow only where their class allows it.
	PersistentVolumeClaimResize = "PersistentVolumeClaimResize"
)

const (
	claimFinalizer      = "kubernetes.io/pvc-protection"
	volumeFinalizer     = "kubernetes.io/pv-protection"
	attributesFinalizer = "kubernetes.io/vac-protection"
)

type inUse struct{ *admission.Handler }

func newStorageObjectInUseProtection(io.Reader) (admission.Interface, error) {
	return &inUse{admission.NewHandler(admission.Create)}, nil
}

func (s *inUse) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch o := a.GetObject().(type) {
	case *corev1.PersistentVolumeClaim:
		if isFor(a, claimsResource) {
			addFinalizer(&o.ObjectMeta, claimFinalizer)
		}
	case *corev1.PersistentVolume:
		if isFor(a, volumesResource) {
			addFinalizer(&o.ObjectMeta, volumeFinalizer)
		}
	case *storagev1.VolumeAttributesClass:
		if isFor(a, attributesResource) {
			addFinalizer(&o.ObjectMeta, attributesFinalizer)
		}
	}
	return nil
}

func addFinalizer(meta *metav1.ObjectMeta, name string) {
	if !slices.Contains(meta.Finalizers, name) {
		meta.Finalizers = append(meta.Finalizers, name)
	}
}

type resize struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

func newPersistentVolumeClaimResize(io.Reader) (admission.Interface, error) {
	return &resize{Handler: admission.NewHandler(admission.Update)}, nil
}

func (s *resize) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Storage().V1().StorageClasses()
	s.classes = classes.Lister()
	s.SetReadyFunc(allSynced(classes.Informer()))
}

func (s *resize) ValidateInitialization() error {
	if s.classes == nil {
		return errors.New(PersistentVolumeClaimResize + " needs an informer factory")
	}
	return nil
}

func (s *resize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, alsoOk := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok || !alsoOk || !isFor(a, claimsResource) {
		return nil
	}
	was, is := old.Spec.Resources.Requests[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if is.Cmp(was) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return admission.NewForbidden(a, errors.New("Only bound persistent volume claims can be expanded"))
	}
	if !s.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	if class, err := s.classes.Get(volume.GetPersistentVolumeClaimClass(claim)); err == nil && ptr.Deref(class.AllowVolumeExpansion,
		false) {
		return nil
	}
	return admission.NewForbidden(a,
		errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
}
