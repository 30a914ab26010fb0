package table

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// layouts has one row per resource that prints more than its name.
var layouts = map[schema.GroupResource]layout{
	// core
	{Resource: "pods"}:                   podLayout,
	{Resource: "nodes"}:                  nodeLayout,
	{Resource: "namespaces"}:             namespaceLayout,
	{Resource: "services"}:               serviceLayout,
	{Resource: "endpoints"}:              endpointsLayout,
	{Resource: "events"}:                 eventLayout,
	{Resource: "configmaps"}:             configMapLayout,
	{Resource: "secrets"}:                secretLayout,
	{Resource: "serviceaccounts"}:        serviceAccountLayout,
	{Resource: "replicationcontrollers"}: controllerLayout,
	{Resource: "podtemplates"}:           podTemplateLayout,
	{Resource: "resourcequotas"}:         quotaLayout,
	{Resource: "persistentvolumes"}:      volumeLayout,
	{Resource: "persistentvolumeclaims"}: claimLayout,

	// workloads
	{Group: "apps", Resource: "deployments"}:            deploymentLayout,
	{Group: "apps", Resource: "replicasets"}:            replicaSetLayout,
	{Group: "apps", Resource: "statefulsets"}:           statefulSetLayout,
	{Group: "apps", Resource: "daemonsets"}:             daemonSetLayout,
	{Group: "apps", Resource: "controllerrevisions"}:    revisionLayout,
	{Group: "batch", Resource: "jobs"}:                  jobLayout,
	{Group: "batch", Resource: "cronjobs"}:              cronJobLayout,
	{Group: "policy", Resource: "poddisruptionbudgets"}: budgetLayout,

	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: autoscalerLayout,

	// network
	{Group: "events.k8s.io", Resource: "events"}:              eventLayout,
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:   endpointSliceLayout,
	{Group: "coordination.k8s.io", Resource: "leases"}:        leaseLayout,
	{Group: "networking.k8s.io", Resource: "ingresses"}:       ingressLayout,
	{Group: "networking.k8s.io", Resource: "ingressclasses"}:  ingressClassLayout,
	{Group: "networking.k8s.io", Resource: "networkpolicies"}: networkPolicyLayout,
	{Group: "networking.k8s.io", Resource: "servicecidrs"}:    serviceCIDRLayout,
	{Group: "networking.k8s.io", Resource: "ipaddresses"}:     ipAddressLayout,

	// storage and node classes
	{Group: "storage.k8s.io", Resource: "storageclasses"}:          storageClassLayout,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                csiNodeLayout,
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: attributesClassLayout,
	{Group: "storage.k8s.io", Resource: "csidrivers"}:              csiDriverLayout,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:       attachmentLayout,
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:             runtimeClassLayout,
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:      priorityClassLayout,
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:         resourceClaimLayout,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:         resourceSliceLayout,
	{Group: "resource.k8s.io", Resource: "deviceclasses"}:          deviceClassLayout,
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}: claimTemplateLayout,

	// access and admission
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}:                 csrLayout,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:                     podCertificateLayout,
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:                         roleBindingLayout,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:                  clusterRoleBindingLayout,
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}:   validatingWebhookLayout,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:     mutatingWebhookLayout,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       validatingPolicyLayout,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: validatingPolicyBindingLayout,
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:                       flowSchemaLayout,
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}:       priorityLevelLayout,
}
