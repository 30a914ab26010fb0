package rbac

import (
	rbac "k8s.io/api/rbac/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var role = registry.Kind[*rbac.Role]{
	GroupVersion: rbac.SchemeGroupVersion, Kind: "Role",
	Resource:        "roles",
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	ValidateName: pathvalidation.ValidatePathSegmentName,
	Validate:     validate.Role,
}
