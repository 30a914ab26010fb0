package scheduling

import (
	scheduling "k8s.io/api/scheduling/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var priorityClass = registry.Kind[*scheduling.PriorityClass]{
	GroupVersion: scheduling.SchemeGroupVersion, Kind: "PriorityClass",
	Resource: "priorityclasses", ShortNames: []string{"pc"},
	AllowUnconditionalUpdate: true,
	Generation:               registry.Once,
	Default:                  defaults.PriorityClass,
	Validate:                 validate.PriorityClass, ValidateUpdate: validate.PriorityClassUpdate,
	Table: table.PriorityClass,
}
