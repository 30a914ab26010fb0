package resource

import (
	dra "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var deviceClass = registry.Kind[*dra.DeviceClass]{
	GroupVersion: dra.SchemeGroupVersion, Kind: "DeviceClass",
	Resource:                 "deviceclasses",
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Generation: registry.OnSpec,
	Validate:   validate.DeviceClass, ValidateUpdate: validate.DeviceClassUpdate,
	Table:        table.DeviceClass,
	NoWatchCache: true,
}
