package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// AttributesFinalizer keeps a VolumeAttributesClass that claims or volumes name.
const AttributesFinalizer = "kubernetes.io/vac-protection"

// classesOfClaim are the attributes classes that a claim asks for, has, or is
// being given.
func classesOfClaim(c *v1.PersistentVolumeClaim) (names []string) {
	for _, name := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if m := c.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	return names
}

func classesOfVolume(v *v1.PersistentVolume) []string {
	if name := v.Spec.VolumeAttributesClassName; name != nil && *name != "" {
		return []string{*name}
	}
	return nil
}

// RunAttributesProtection keeps the finalizer of VolumeAttributesClasses until
// the context ends.
func RunAttributesProtection(ctx context.Context, e controller.Env) error {
	core, classes := e.Informers.Core().V1(), e.Informers.Storage().V1().VolumeAttributesClasses()
	q := controller.NewQueue()
	add := func(names []string) {
		for _, name := range names {
			q.Add(name)
		}
	}
	a, err1 := controller.On(ctx, classes.Informer(), func(_, c *storagev1.VolumeAttributesClass, _ bool) { q.Add(c.Name) })
	b, err2 := controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(old, c *v1.PersistentVolumeClaim, gone bool) {
		if old != nil && (gone || !slices.Equal(classesOfClaim(old), classesOfClaim(c))) {
			add(classesOfClaim(old))
		}
	})
	c, err3 := controller.On(ctx, core.PersistentVolumes().Informer(), func(old, v *v1.PersistentVolume, gone bool) {
		if old != nil && (gone || !slices.Equal(classesOfVolume(old), classesOfVolume(v))) {
			add(classesOfVolume(old))
		}
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, c); err != nil {
		return nil
	}
	sync := func(ctx context.Context, class *storagev1.VolumeAttributesClass) (time.Duration, error) {
		used := false
		if class.DeletionTimestamp != nil && slices.Contains(class.Finalizers, AttributesFinalizer) {
			var err error
			if used, err = attributesUsed(ctx, e, class.Name); err != nil {
				return 0, fmt.Errorf("looking for users of volume attributes class %s: %w", class.Name, err)
			}
		}
		change := protect(class, AttributesFinalizer, used)
		if change == nil {
			return 0, nil
		}
		_, err := kube.Patch(ctx, e.Client.StorageV1().VolumeAttributesClasses(), class, kube.Unchanged, *change)
		if kube.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("guarding volume attributes class %s: %w", class.Name, err)
		}
		return 0, nil
	}
	return e.Run(ctx, q, 1, controller.Existing(classes.Informer().GetIndexer(), sync))
}

// attributesUsed asks the API itself: a cache may be behind a claim that was
// written just now, and a class is deleted rarely.
func attributesUsed(ctx context.Context, e controller.Env, name string) (bool, error) {
	claims, err := e.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range claims.Items {
		if slices.Contains(classesOfClaim(&claims.Items[i]), name) {
			return true, nil
		}
	}
	volumes, err := e.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range volumes.Items {
		if slices.Contains(classesOfVolume(&volumes.Items[i]), name) {
			return true, nil
		}
	}
	return false, nil
}
