package resource

import (
	dra "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var resourceClaim = registry.Kind[*dra.ResourceClaim]{
	GroupVersion: dra.SchemeGroupVersion, Kind: "ResourceClaim",
	Resource:        "resourceclaims",
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	HasStatus: true, StatusResets: registry.Metadata,
	Default:  defaults.ResourceClaim,
	Validate: validate.ResourceClaim, ValidateUpdate: validate.ResourceClaimUpdate,
	ValidateStatusUpdate: validate.ResourceClaimStatusUpdate,
	Table:                table.ResourceClaim,
	NoWatchCache:         true,
}
