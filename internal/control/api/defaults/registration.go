package defaults

import (
	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// webhookTimeout is how long, in seconds, the API server waits for a webhook.
const webhookTimeout int32 = 10

// addRegistration registers the kinds that extend admission.
func addRegistration(s *runtime.Scheme) {
	kind(s, func(c *admission.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			validatingWebhook(&c.Webhooks[i])
		}
	}, func(l *admission.ValidatingWebhookConfigurationList) []admission.ValidatingWebhookConfiguration {
		return l.Items
	})
	kind(s, func(c *admission.MutatingWebhookConfiguration) {
		for i := range c.Webhooks {
			mutatingWebhook(&c.Webhooks[i])
		}
	}, func(l *admission.MutatingWebhookConfigurationList) []admission.MutatingWebhookConfiguration {
		return l.Items
	})
	kind(s, func(p *admission.ValidatingAdmissionPolicy) {
		fill(&p.Spec.FailurePolicy, admission.Fail)
		matchResources(p.Spec.MatchConstraints)
	}, func(l *admission.ValidatingAdmissionPolicyList) []admission.ValidatingAdmissionPolicy { return l.Items })
	kind(s, func(b *admission.ValidatingAdmissionPolicyBinding) { matchResources(b.Spec.MatchResources) },
		func(l *admission.ValidatingAdmissionPolicyBindingList) []admission.ValidatingAdmissionPolicyBinding {
			return l.Items
		})
	kind(s, func(p *admission.MutatingAdmissionPolicy) {
		fill(&p.Spec.FailurePolicy, admission.Fail)
		matchResources(p.Spec.MatchConstraints)
	}, func(l *admission.MutatingAdmissionPolicyList) []admission.MutatingAdmissionPolicy { return l.Items })
	kind(s, func(b *admission.MutatingAdmissionPolicyBinding) { matchResources(b.Spec.MatchResources) },
		func(l *admission.MutatingAdmissionPolicyBindingList) []admission.MutatingAdmissionPolicyBinding {
			return l.Items
		})
}

func validatingWebhook(w *admission.ValidatingWebhook) {
	fill(&w.FailurePolicy, admission.Fail)
	fill(&w.MatchPolicy, admission.Equivalent)
	fill(&w.NamespaceSelector, metav1.LabelSelector{})
	fill(&w.ObjectSelector, metav1.LabelSelector{})
	fill(&w.TimeoutSeconds, webhookTimeout)
	clientConfig(&w.ClientConfig)
	for i := range w.Rules {
		fill(&w.Rules[i].Scope, admission.AllScopes)
	}
}

func mutatingWebhook(w *admission.MutatingWebhook) {
	fill(&w.FailurePolicy, admission.Fail)
	fill(&w.MatchPolicy, admission.Equivalent)
	fill(&w.NamespaceSelector, metav1.LabelSelector{})
	fill(&w.ObjectSelector, metav1.LabelSelector{})
	fill(&w.TimeoutSeconds, webhookTimeout)
	fill(&w.ReinvocationPolicy, admission.NeverReinvocationPolicy)
	clientConfig(&w.ClientConfig)
	for i := range w.Rules {
		fill(&w.Rules[i].Scope, admission.AllScopes)
	}
}

func clientConfig(c *admission.WebhookClientConfig) {
	if c.Service != nil {
		fill(&c.Service.Port, 443)
	}
}

func matchResources(m *admission.MatchResources) {
	if m == nil {
		return
	}
	fill(&m.MatchPolicy, admission.Equivalent)
	fill(&m.NamespaceSelector, metav1.LabelSelector{})
	fill(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admission.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			fill(&rules[i].Scope, admission.AllScopes)
		}
	}
}
