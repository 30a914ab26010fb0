package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var resourceQuota = registry.Kind[*v1.ResourceQuota]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "ResourceQuota",
	Resource: "resourcequotas", ShortNames: []string{"quota"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	HasStatus: true,
	Default:   defaults.ResourceQuota,
	Validate:  validate.ResourceQuota, ValidateUpdate: validate.ResourceQuotaUpdate,
	ValidateStatusUpdate: validate.ResourceQuotaStatusUpdate,
	Table:                table.ResourceQuota,
	NoWatchCache:         true,
}
