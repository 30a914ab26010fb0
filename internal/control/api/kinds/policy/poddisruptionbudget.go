package policy

import (
	policy "k8s.io/api/policy/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var podDisruptionBudget = registry.Kind[*policy.PodDisruptionBudget]{
	GroupVersion: policy.SchemeGroupVersion, Kind: "PodDisruptionBudget",
	Resource: "poddisruptionbudgets", ShortNames: []string{"pdb"},
	NamespaceScoped: true,
	HasStatus:       true,
	Generation:      registry.OnSpec,
	ValidateName:    pathvalidation.ValidatePathSegmentName,
	Validate:        validate.PodDisruptionBudget, ValidateStatusUpdate: validate.PodDisruptionBudgetStatusUpdate,
	Table: table.PodDisruptionBudget,
}
