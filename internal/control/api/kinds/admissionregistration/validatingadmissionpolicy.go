package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var validatingAdmissionPolicy = registry.Kind[*admission.ValidatingAdmissionPolicy]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "ValidatingAdmissionPolicy",
	Resource: "validatingadmissionpolicies", Categories: []string{"api-extensions"},
	HasStatus: true, StatusResets: registry.Metadata,
	Generation: registry.OnSpec,
	Default:    defaults.ValidatingAdmissionPolicy,
	Validate:   validate.ValidatingAdmissionPolicy, ValidateStatusUpdate: validate.ValidatingAdmissionPolicyStatusUpdate,
	Table:        table.ValidatingAdmissionPolicy,
	NoWatchCache: true,
}
