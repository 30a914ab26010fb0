package apps

import (
	apps "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var deployment = registry.Kind[*apps.Deployment]{
	GroupVersion: apps.SchemeGroupVersion, Kind: "Deployment",
	Resource: "deployments", ShortNames: []string{"deploy"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus: true, StatusResets: registry.Labels,
	Generation: registry.OnSpecAndAnnotations,
	Default:    defaults.Deployment,
	Validate:   validate.Deployment, ValidateUpdate: validate.DeploymentUpdate, ValidateStatusUpdate: validate.DeploymentStatusUpdate,
	Table: table.Deployment,
}
