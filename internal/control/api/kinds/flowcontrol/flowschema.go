package flowcontrol

import (
	flow "k8s.io/api/flowcontrol/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var flowSchema = registry.Kind[*flow.FlowSchema]{
	GroupVersion: flow.SchemeGroupVersion, Kind: "FlowSchema",
	Resource:                 "flowschemas",
	AllowUnconditionalUpdate: true,
	HasStatus:                true, StatusResets: registry.Metadata,
	Generation: registry.OnSpec,
	Default:    defaults.FlowSchema,
	Validate:   validate.FlowSchema, ValidateStatusUpdate: validate.FlowSchemaStatusUpdate,
	Table:        table.FlowSchema,
	NoWatchCache: true,
}
