package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var endpoints = registry.Kind[*v1.Endpoints]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Endpoints",
	Resource: "endpoints", SingularName: "endpoints", ShortNames: []string{"ep"},
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	Default:  defaults.Endpoints,
	Validate: validate.Endpoints,
	Table:    table.Endpoints,
}
