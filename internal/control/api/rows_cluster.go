package api

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

func networkRows() []Row {
	return family(networkingv1.SchemeGroupVersion,
		Row{Kind: "Ingress", Resource: "ingresses", ShortNames: []string{"ing"},
			HasStatus: true, Generation: generationSpec},
		Row{Kind: "IngressClass", Resource: "ingressclasses", NoCache: true, ClusterScoped: true, Generation: generationSpec},
		Row{Kind: "NetworkPolicy", Resource: "networkpolicies", ShortNames: []string{"netpol"},
			Generation: generationSpec},
	)
}

func storageRows() []Row {
	return family(storagev1.SchemeGroupVersion,
		Row{Kind: "StorageClass", Resource: "storageclasses", ShortNames: []string{"sc"}, ClusterScoped: true,
			ReturnDeleted: true},
		Row{Kind: "CSIDriver", Resource: "csidrivers", ClusterScoped: true, ReturnDeleted: true,
			NeedsResourceVersion: true, Generation: generationSpec},
		Row{Kind: "CSINode", Resource: "csinodes", ClusterScoped: true, ReturnDeleted: true,
			NeedsResourceVersion: true},
		Row{Kind: "CSIStorageCapacity", Resource: "csistoragecapacities", NoCache: true},
		Row{Kind: "VolumeAttachment", Resource: "volumeattachments", ClusterScoped: true, HasStatus: true, StatusKeeps: keepMeta,
			ReturnDeleted: true, NeedsResourceVersion: true},
		Row{Kind: "VolumeAttributesClass", Resource: "volumeattributesclasses", NoCache: true, ShortNames: []string{"vac"},
			ClusterScoped: true, ReturnDeleted: true},
	)
}

func policyRows() []Row {
	rows := family(policyv1.SchemeGroupVersion,
		Row{Kind: "PodDisruptionBudget", Resource: "poddisruptionbudgets", ShortNames: []string{"pdb"},
			HasStatus: true, Generation: generationSpec, NeedsResourceVersion: true},
	)
	rows = append(rows, family(schedulingv1.SchemeGroupVersion,
		Row{Kind: "PriorityClass", Resource: "priorityclasses", ShortNames: []string{"pc"}, ClusterScoped: true,
			Generation: generationOnce},
	)...)
	return append(rows, family(nodev1.SchemeGroupVersion,
		Row{Kind: "RuntimeClass", Resource: "runtimeclasses", ClusterScoped: true, NeedsResourceVersion: true},
	)...)
}

func identityRows() []Row {
	return family(rbacv1.SchemeGroupVersion,
		Row{Kind: "Role", Resource: "roles", CreateByPut: true},
		Row{Kind: "RoleBinding", Resource: "rolebindings", CreateByPut: true},
		Row{Kind: "ClusterRole", Resource: "clusterroles", ClusterScoped: true, CreateByPut: true},
		Row{Kind: "ClusterRoleBinding", Resource: "clusterrolebindings", ClusterScoped: true, CreateByPut: true},
	)
}

// extensions is the category of objects that extend the API server.
var extensions = []string{"api-extensions"}

func admissionRows() []Row {
	return family(admissionregistrationv1.SchemeGroupVersion,
		Row{Kind: "ValidatingWebhookConfiguration", Resource: "validatingwebhookconfigurations", NoCache: true, ClusterScoped: true, Categories: extensions,
			Generation: generationContent, NeedsResourceVersion: true},
		Row{Kind: "MutatingWebhookConfiguration", Resource: "mutatingwebhookconfigurations", NoCache: true, ClusterScoped: true, Categories: extensions,
			Generation: generationContent, NeedsResourceVersion: true},
		Row{Kind: "ValidatingAdmissionPolicy", Resource: "validatingadmissionpolicies", NoCache: true, ClusterScoped: true, Categories: extensions,
			HasStatus: true, StatusKeeps: keepMeta, Generation: generationSpec, NeedsResourceVersion: true},
		Row{Kind: "ValidatingAdmissionPolicyBinding", Resource: "validatingadmissionpolicybindings", NoCache: true, ClusterScoped: true, Categories: extensions,
			Generation: generationSpec, NeedsResourceVersion: true},
		Row{Kind: "MutatingAdmissionPolicy", Resource: "mutatingadmissionpolicies", NoCache: true, ClusterScoped: true, Categories: extensions,
			Generation: generationSpec, NeedsResourceVersion: true},
		Row{Kind: "MutatingAdmissionPolicyBinding", Resource: "mutatingadmissionpolicybindings", NoCache: true, ClusterScoped: true, Categories: extensions,
			Generation: generationSpec, NeedsResourceVersion: true},
	)
}

func flowRows() []Row {
	return family(flowcontrolv1.SchemeGroupVersion,
		Row{Kind: "FlowSchema", Resource: "flowschemas", NoCache: true, ClusterScoped: true,
			HasStatus: true, StatusKeeps: keepMeta, Generation: generationSpec},
		Row{Kind: "PriorityLevelConfiguration", Resource: "prioritylevelconfigurations", NoCache: true, ClusterScoped: true,
			HasStatus: true, StatusKeeps: keepMeta, Generation: generationSpec},
	)
}

// trustRows are the certificate resources without a storage of their own.
func trustRows() []Row {
	return family(certificatesv1.SchemeGroupVersion,
		Row{Kind: "ClusterTrustBundle", Resource: "clustertrustbundles", NoCache: true, ClusterScoped: true, NeedsResourceVersion: true},
		Row{Kind: "PodCertificateRequest", Resource: "podcertificaterequests", NoCache: true, HasStatus: true, NeedsResourceVersion: true,
			ValidateStatus: func(obj, old runtime.Object) field.ErrorList {
				return validate.PodCertificateFresh(obj.(*certificatesv1.PodCertificateRequest), old.(*certificatesv1.PodCertificateRequest), time.Now())
			}},
	)
}

func deviceRows() []Row {
	return family(resourcev1.SchemeGroupVersion,
		Row{Kind: "ResourceClaim", Resource: "resourceclaims", NoCache: true, HasStatus: true, StatusKeeps: keepMeta, ReturnDeleted: true},
		Row{Kind: "ResourceClaimTemplate", Resource: "resourceclaimtemplates", NoCache: true, ReturnDeleted: true},
		Row{Kind: "ResourceSlice", Resource: "resourceslices", NoCache: true, ClusterScoped: true, ReturnDeleted: true,
			Generation: generationSpec, PrepareCreate: prepareResourceSlice, PrepareUpdate: prepareResourceSliceUpdate},
		Row{Kind: "DeviceClass", Resource: "deviceclasses", NoCache: true, ClusterScoped: true, ReturnDeleted: true,
			Generation: generationSpec},
	)
}
