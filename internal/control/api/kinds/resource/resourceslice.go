package resource

import (
	"context"

	dra "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var resourceSlice = registry.Kind[*dra.ResourceSlice]{
	GroupVersion: dra.SchemeGroupVersion, Kind: "ResourceSlice",
	Resource:                 "resourceslices",
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Generation: registry.OnSpec,
	Validate:   validate.ResourceSlice, ValidateUpdate: validate.ResourceSliceUpdate,
	PrepareForCreate: stampTaints, PrepareForUpdate: keepTaintTimes,
	Table: table.ResourceSlice,
	SelectableFields: registry.Fields[*dra.ResourceSlice]{
		Keys: []string{"spec.nodeName", "spec.driver"},
		Values: func(o *dra.ResourceSlice, set fields.Set) {
			set["spec.nodeName"] = ""
			if o.Spec.NodeName != nil {
				set["spec.nodeName"] = *o.Spec.NodeName
			}
			set["spec.driver"] = o.Spec.Driver
		},
	},
	NoWatchCache: true,
}

// stampTaints notes when a taint came: tolerations count their seconds from then.
func stampTaints(_ context.Context, s *dra.ResourceSlice) {
	now := metav1.Now()
	for i := range s.Spec.Devices {
		for k := range s.Spec.Devices[i].Taints {
			if t := &s.Spec.Devices[i].Taints[k]; t.TimeAdded == nil {
				t.TimeAdded = &now
			}
		}
	}
}

// keepTaintTimes keeps the time of a taint that was there, so that a driver
// that publishes the same again changes nothing.
func keepTaintTimes(ctx context.Context, s, old *dra.ResourceSlice) {
	type taint struct {
		device, key, value string
		effect             dra.DeviceTaintEffect
	}
	since := map[taint]*metav1.Time{}
	for _, d := range old.Spec.Devices {
		for _, t := range d.Taints {
			since[taint{d.Name, t.Key, t.Value, t.Effect}] = t.TimeAdded
		}
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		for k := range d.Taints {
			if t := &d.Taints[k]; t.TimeAdded == nil {
				t.TimeAdded = since[taint{d.Name, t.Key, t.Value, t.Effect}]
			}
		}
	}
	stampTaints(ctx, s)
}
