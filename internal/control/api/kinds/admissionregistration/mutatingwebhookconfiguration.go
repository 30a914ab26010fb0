package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var mutatingWebhookConfiguration = registry.Kind[*admission.MutatingWebhookConfiguration]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "MutatingWebhookConfiguration",
	Resource: "mutatingwebhookconfigurations", Categories: []string{"api-extensions"},
	Generation:   registry.OnContent,
	Default:      defaults.MutatingWebhookConfiguration,
	Validate:     validate.MutatingWebhookConfiguration,
	Table:        table.MutatingWebhookConfiguration,
	NoWatchCache: true,
}
