package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var configMap = registry.Kind[*v1.ConfigMap]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "ConfigMap",
	Resource: "configmaps", ShortNames: []string{"cm"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Validate: validate.ConfigMap, ValidateUpdate: validate.ConfigMapUpdate,
	Table: table.ConfigMap,
}
