// Package admissionregistration describes the kinds of
// admissionregistration.k8s.io, one file each.
package admissionregistration

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&validatingWebhookConfiguration,
	&mutatingWebhookConfiguration,
	&validatingAdmissionPolicy,
	&validatingAdmissionPolicyBinding,
	&mutatingAdmissionPolicy,
	&mutatingAdmissionPolicyBinding,
}
