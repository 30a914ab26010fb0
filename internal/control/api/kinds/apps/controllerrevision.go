package apps

import (
	apps "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var controllerRevision = registry.Kind[*apps.ControllerRevision]{
	GroupVersion: apps.SchemeGroupVersion, Kind: "ControllerRevision",
	Resource:        "controllerrevisions",
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Validate: validate.ControllerRevision, ValidateUpdate: validate.ControllerRevisionUpdate,
	Table:        table.ControllerRevision,
	NoWatchCache: true,
}
