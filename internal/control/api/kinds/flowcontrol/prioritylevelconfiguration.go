package flowcontrol

import (
	flow "k8s.io/api/flowcontrol/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var priorityLevelConfiguration = registry.Kind[*flow.PriorityLevelConfiguration]{
	GroupVersion: flow.SchemeGroupVersion, Kind: "PriorityLevelConfiguration",
	Resource:                 "prioritylevelconfigurations",
	AllowUnconditionalUpdate: true,
	HasStatus:                true, StatusResets: registry.Metadata,
	Generation: registry.OnSpec,
	Default:    defaults.PriorityLevelConfiguration,
	Validate:   validate.PriorityLevelConfiguration, ValidateStatusUpdate: validate.PriorityLevelConfigurationStatusUpdate,
	Table:        table.PriorityLevelConfiguration,
	NoWatchCache: true,
}
