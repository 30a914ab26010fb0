package defaults

import (
	admission "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// webhookTimeout is how long, in seconds, the API server waits for a webhook.
const webhookTimeout int32 = 10

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

func ValidatingWebhookConfiguration(c *admission.ValidatingWebhookConfiguration) {
	for i := range c.Webhooks {
		validatingWebhook(&c.Webhooks[i])
	}
}

func MutatingWebhookConfiguration(c *admission.MutatingWebhookConfiguration) {
	for i := range c.Webhooks {
		mutatingWebhook(&c.Webhooks[i])
	}
}

func ValidatingAdmissionPolicy(p *admission.ValidatingAdmissionPolicy) {
	fill(&p.Spec.FailurePolicy, admission.Fail)
	matchResources(p.Spec.MatchConstraints)
}

func ValidatingAdmissionPolicyBinding(b *admission.ValidatingAdmissionPolicyBinding) {
	matchResources(b.Spec.MatchResources)
}

func MutatingAdmissionPolicy(p *admission.MutatingAdmissionPolicy) {
	fill(&p.Spec.FailurePolicy, admission.Fail)
	matchResources(p.Spec.MatchConstraints)
}

func MutatingAdmissionPolicyBinding(b *admission.MutatingAdmissionPolicyBinding) {
	matchResources(b.Spec.MatchResources)
}
