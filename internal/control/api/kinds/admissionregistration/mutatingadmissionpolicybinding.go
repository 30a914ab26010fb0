package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var mutatingAdmissionPolicyBinding = registry.Kind[*admission.MutatingAdmissionPolicyBinding]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "MutatingAdmissionPolicyBinding",
	Resource: "mutatingadmissionpolicybindings", Categories: []string{"api-extensions"},
	Generation:   registry.OnSpec,
	Default:      defaults.MutatingAdmissionPolicyBinding,
	Validate:     validate.MutatingAdmissionPolicyBinding,
	NoWatchCache: true,
}
