package apps

import (
	apps "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var daemonSet = registry.Kind[*apps.DaemonSet]{
	GroupVersion: apps.SchemeGroupVersion, Kind: "DaemonSet",
	Resource: "daemonsets", ShortNames: []string{"ds"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:  true,
	Generation: registry.OnSpec,
	Default:    defaults.DaemonSet,
	Validate:   validate.DaemonSet, ValidateUpdate: validate.DaemonSetUpdate, ValidateStatusUpdate: validate.DaemonSetStatusUpdate,
	Table: table.DaemonSet,
}
