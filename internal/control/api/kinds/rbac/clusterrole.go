package rbac

import (
	rbac "k8s.io/api/rbac/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var clusterRole = registry.Kind[*rbac.ClusterRole]{
	GroupVersion: rbac.SchemeGroupVersion, Kind: "ClusterRole",
	Resource:            "clusterroles",
	AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	ValidateName: pathvalidation.ValidatePathSegmentName,
	Validate:     validate.ClusterRole,
}
