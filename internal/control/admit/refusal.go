package admit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
)

// remedies say, by plugin, what someone can do whom it refused. The text follows
// what the plugin says, which is upstream's wherever clients look for it. Not
// among them are plugins that refuse nothing, those of berth's own that say it
// themselves, and webhooks and policies, whose text their author writes
// (TestEveryRuleSaysWhatToDo has them all).
var remedies = map[string]string{
	lifecycle.PluginName: "create the namespace first; one that is being deleted takes nothing new until it is gone, and default, " +
		"kube-system and kube-public stay",
	NamespaceExists: "create the namespace first",
	LimitRanger:     "set spec.containers[*].resources (of a claim: spec.resources) within the LimitRange objects of the namespace",
	ServiceAccount: "create the ServiceAccount that spec.serviceAccountName names, or list the secret among those of the account; a " +
		"mirror pod may use neither",
	NodeRestriction: "a node writes only its own objects and those of its pods; for anything else use an identity that has the right",
	ImagePolicyWebhook: "use an image (spec.containers[*].image) that the image policy of this cluster allows, or ask who keeps " +
		"that policy",
	PodSecurity: "change the fields that are named, or have who owns the namespace set another level (label " +
		"pod-security.kubernetes.io/enforce)",
	PodNodeSelector: "take the label out of spec.nodeSelector, or have the node selector of the namespace changed",
	Priority: "name a PriorityClass that is there (kubectl get priorityclasses) in spec.priorityClassName, and leave spec.priority " +
		"and spec.preemptionPolicy to it; one PriorityClass at most has globalDefault: true",
	PodTolerationRestriction: "take the toleration out of spec.tolerations, or have the namespace's whitelist changed",
	EventRateLimit:           "send fewer events, or have the limits of the plugin's configuration raised",
	OwnerReferencesPermissionEnforcement: "leave out metadata.ownerReferences[*].blockOwnerDeletion, or get the right to delete the " +
		"object or to update finalizers of the owner",
	PersistentVolumeClaimResize: "grow spec.resources.requests.storage of bound claims only whose StorageClass has " +
		"allowVolumeExpansion: true",
	RuntimeClass: "name a RuntimeClass that is there (kubectl get runtimeclasses) in spec.runtimeClassName, leave spec.overhead to " +
		"it, and keep spec.nodeSelector from contradicting it",
	PodResizeValidator:            "ask for resources that the pod's node has, or create the pod again where there is room",
	ClusterTrustBundleAttest:      "get the verb attest on signers of certificates.k8s.io for spec.signerName",
	CertificateApproval:           "get the verb approve on signers of certificates.k8s.io for spec.signerName",
	CertificateSigning:            "get the verb sign on signers of certificates.k8s.io for spec.signerName",
	PodCertificateSigning:         "get the verb sign on signers of certificates.k8s.io for spec.signerName",
	CertificateSubjectRestriction: "leave the organization out of the subject of spec.request, and bind roles to another group",
	DeviceAdminAccess: "leave out adminAccess, or have who owns the namespace label it resource.kubernetes.io/admin-access: " +
		"\"true\"",
	RBACEscalation: "grant only rules that you hold yourself, or get the verb escalate on the role (to change it) or bind on it (to " +
		"bind it)",
	resourcequota.PluginName: "delete what counts, ask for less or state what must be specified, or have spec.hard of the quota raised",
}

// refusing completes what plugins say when they refuse: the rule's name and the
// remedy, after the plugin's own words.
type refusing struct {
	admission.Interface
	name string
}

func withRemedy(plugin admission.Interface, name string) admission.Interface {
	if remedies[name] == "" {
		return plugin
	}
	return refusing{plugin, name}
}

func (r refusing) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if m, ok := r.Interface.(admission.MutationInterface); ok {
		return r.complete(m.Admit(ctx, a, o))
	}
	return nil
}

func (r refusing) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := r.Interface.(admission.ValidationInterface); ok {
		return r.complete(v.Validate(ctx, a, o))
	}
	return nil
}

// starting is what plugins say whose informers have not been filled yet.
const starting = "not yet ready to handle request"

func (r refusing) complete(err error) error {
	var refused *apierrors.StatusError
	if err == nil || !errors.As(err, &refused) {
		return err
	}
	switch refused.ErrStatus.Code {
	case http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
	default:
		return err
	}
	remedy := remedies[r.name]
	if strings.HasSuffix(refused.ErrStatus.Message, starting) {
		remedy = "the server is starting: try again"
	}
	out := *refused
	out.ErrStatus.Message = fmt.Sprintf("%s (%s: %s)", strings.TrimRight(out.ErrStatus.Message, " "), r.name, remedy)
	return &out
}
