package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var mutatingAdmissionPolicy = registry.Kind[*admission.MutatingAdmissionPolicy]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "MutatingAdmissionPolicy",
	Resource: "mutatingadmissionpolicies", Categories: []string{"api-extensions"},
	Generation:   registry.OnSpec,
	Default:      defaults.MutatingAdmissionPolicy,
	Validate:     validate.MutatingAdmissionPolicy,
	NoWatchCache: true,
}
