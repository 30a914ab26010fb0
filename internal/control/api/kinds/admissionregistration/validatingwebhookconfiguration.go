package admissionregistration

import (
	admission "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var validatingWebhookConfiguration = registry.Kind[*admission.ValidatingWebhookConfiguration]{
	GroupVersion: admission.SchemeGroupVersion, Kind: "ValidatingWebhookConfiguration",
	Resource: "validatingwebhookconfigurations", Categories: []string{"api-extensions"},
	Generation:   registry.OnContent,
	Default:      defaults.ValidatingWebhookConfiguration,
	Validate:     validate.ValidatingWebhookConfiguration,
	Table:        table.ValidatingWebhookConfiguration,
	NoWatchCache: true,
}
