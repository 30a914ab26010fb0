package rbac

import (
	rbac "k8s.io/api/rbac/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var clusterRoleBinding = registry.Kind[*rbac.ClusterRoleBinding]{
	GroupVersion: rbac.SchemeGroupVersion, Kind: "ClusterRoleBinding",
	Resource:            "clusterrolebindings",
	AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	Default:      defaults.ClusterRoleBinding,
	ValidateName: pathvalidation.ValidatePathSegmentName,
	Validate:     validate.ClusterRoleBinding, ValidateUpdate: validate.ClusterRoleBindingUpdate,
	Table: table.ClusterRoleBinding,
}
