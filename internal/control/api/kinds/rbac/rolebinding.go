package rbac

import (
	rbac "k8s.io/api/rbac/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var roleBinding = registry.Kind[*rbac.RoleBinding]{
	GroupVersion: rbac.SchemeGroupVersion, Kind: "RoleBinding",
	Resource:        "rolebindings",
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	Default:      defaults.RoleBinding,
	ValidateName: pathvalidation.ValidatePathSegmentName,
	Validate:     validate.RoleBinding, ValidateUpdate: validate.RoleBindingUpdate,
	Table: table.RoleBinding,
}
