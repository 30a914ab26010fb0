package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var validatingAdmissionPolicyBinding = registry.Kind[*admission.ValidatingAdmissionPolicyBinding]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "ValidatingAdmissionPolicyBinding",
	Resource: "validatingadmissionpolicybindings", Categories: []string{"api-extensions"},
	Generation: registry.OnSpec,
	Default:    defaults.ValidatingAdmissionPolicyBinding,
	Validate:   validate.ValidatingAdmissionPolicyBinding, ValidateUpdate: validate.ValidatingAdmissionPolicyBindingUpdate,
	Table:        table.ValidatingAdmissionPolicyBinding,
	NoWatchCache: true,
}
