package provision

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/localvolume"
	"k8s.io/utils/ptr"
)

// The classes that a new cluster has.
const (
	DirectoryClass = "local"
	ImageClass     = "local-image"
)

// marker is the config map in kube-system that says that the classes were made
// once: whatever a user did to them since is theirs.
const marker = "berth-local-volumes"

const defaultAnnotation = "storageclass.kubernetes.io/is-default-class"

// driverObject tells agents and the scheduler about the driver.
func driverObject() *storagev1.CSIDriver {
	policy := storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: localvolume.Name}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(false), PodInfoOnMount: ptr.To(false), StorageCapacity: ptr.To(true), FSGroupPolicy: &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

// classes are the StorageClasses of a new cluster. The first is the default,
// unless there is one.
func classes(hasDefault bool) []*storagev1.StorageClass {
	one := func(name string, kind localvolume.Kind) *storagev1.StorageClass {
		reclaim, mode := v1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: localvolume.Name, ReclaimPolicy: &reclaim,
			VolumeBindingMode: &mode, AllowVolumeExpansion: ptr.To(true),
			Parameters: map[string]string{localvolume.TypeParameter: string(kind)}}
	}
	directory, image := one(DirectoryClass, localvolume.Directory), one(ImageClass, localvolume.Image)
	if !hasDefault {
		directory.Annotations = map[string]string{defaultAnnotation: "true"}
	}
	return []*storagev1.StorageClass{directory, image}
}

// setUp makes the driver's object, and the classes if this cluster never had
// them.
func (p *provisioner) setUp(ctx context.Context) error {
	if _, err := p.drivers.Get(localvolume.Name); apierrors.IsNotFound(err) {
		_, err = p.Client.StorageV1().CSIDrivers().Create(ctx, driverObject(), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making CSIDriver %s: %w", localvolume.Name, err)
		}
	}
	maps := p.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := maps.Get(ctx, marker, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	hasDefault := false
	for _, c := range all {
		hasDefault = hasDefault || c.Annotations[defaultAnnotation] == "true"
	}
	for _, c := range classes(hasDefault) {
		if _, err := p.Client.StorageV1().StorageClasses().Create(ctx, c, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making StorageClass %s: %w", c.Name, err)
		}
	}
	// Last: a crash before makes the classes again, which no one can have changed.
	_, err = maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker, Annotations: map[string]string{
		"kubernetes.io/description": "The StorageClasses local and local-image were made when this cluster was new. They are not made " +
			"again; delete this config map to have them back."}}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
