package admit

import (
	"io"

	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
)

// Names and makers of the library's plugins that users extend.
const (
	mutatingPolicies   = mutatingpolicy.PluginName
	mutatingWebhooks   = mutatingwebhook.PluginName
	validatingPolicies = validatingpolicy.PluginName
	validatingWebhooks = validatingwebhook.PluginName
)

func makeMutatingPolicies(config io.Reader) (admission.Interface, error) {
	return mutatingpolicy.NewPlugin(config)
}

func makeMutatingWebhooks(config io.Reader) (admission.Interface, error) {
	return mutatingwebhook.NewMutatingWebhook(config)
}

func makeValidatingPolicies(config io.Reader) (admission.Interface, error) {
	return validatingpolicy.NewPlugin(config)
}

func makeValidatingWebhooks(config io.Reader) (admission.Interface, error) {
	return validatingwebhook.NewValidatingAdmissionWebhook(config)
}
