package resource

import (
	dra "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var resourceClaimTemplate = registry.Kind[*dra.ResourceClaimTemplate]{
	GroupVersion: dra.SchemeGroupVersion, Kind: "ResourceClaimTemplate",
	Resource:        "resourceclaimtemplates",
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Default:  defaults.ResourceClaimTemplate,
	Validate: validate.ResourceClaimTemplate, ValidateUpdate: validate.ResourceClaimTemplateUpdate,
	Table:        table.ResourceClaimTemplate,
	NoWatchCache: true,
}
