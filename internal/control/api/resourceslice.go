package api

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// prepareResourceSlice notes when a taint came: tolerations count their seconds from then.
func prepareResourceSlice(_ context.Context, obj runtime.Object) {
	slice := obj.(*resourcev1.ResourceSlice)
	now := metav1.Now()
	for i := range slice.Spec.Devices {
		for k := range slice.Spec.Devices[i].Taints {
			if t := &slice.Spec.Devices[i].Taints[k]; t.TimeAdded == nil {
				t.TimeAdded = &now
			}
		}
	}
}

// prepareResourceSliceUpdate keeps the time of a taint that was there, so that a driver that publishes the same again
// changes nothing.
func prepareResourceSliceUpdate(ctx context.Context, obj, old runtime.Object) {
	slice, was := obj.(*resourcev1.ResourceSlice), old.(*resourcev1.ResourceSlice)
	type taint struct {
		device, key, value string
		effect             resourcev1.DeviceTaintEffect
	}
	since := map[taint]*metav1.Time{}
	for _, d := range was.Spec.Devices {
		for _, t := range d.Taints {
			since[taint{d.Name, t.Key, t.Value, t.Effect}] = t.TimeAdded
		}
	}
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		for k := range d.Taints {
			if t := &d.Taints[k]; t.TimeAdded == nil {
				t.TimeAdded = since[taint{d.Name, t.Key, t.Value, t.Effect}]
			}
		}
	}
	prepareResourceSlice(ctx, slice)
}
