package apps

import (
	apps "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var replicaSet = registry.Kind[*apps.ReplicaSet]{
	GroupVersion: apps.SchemeGroupVersion, Kind: "ReplicaSet",
	Resource: "replicasets", ShortNames: []string{"rs"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:  true,
	Generation: registry.OnSpec,
	Default:    defaults.ReplicaSet,
	Validate:   validate.ReplicaSet, ValidateUpdate: validate.ReplicaSetUpdate, ValidateStatusUpdate: validate.ReplicaSetStatusUpdate,
	Table: table.ReplicaSet,
}
