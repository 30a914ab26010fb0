package nodeauthz

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/berth-dev/berth/internal/control/auth/podref"
)

// UserPrefix begins every node's user name; the rest is the node's name.
const UserPrefix = "system:node:"

// NodeIdentity says whether the user is a node, and which. A node whose user name
// ends at the prefix is a node without a name: it may do nothing.
func NodeIdentity(u user.Info) (node string, isNode bool) {
	if u == nil || !strings.HasPrefix(u.GetName(), UserPrefix) || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	return u.GetName()[len(UserPrefix):], true
}

// question is what decides a request once its form is right.
type question struct {
	verdict verdict
	reason  string
	// For ask: exactly one of these.
	ref   *podref.Ref
	pod   *podKey
	owned *owned
}

type verdict uint8

const (
	refuse verdict = iota
	allow
	ask    // allow if the graph says so
	static // allow if the rules common to all nodes do
)

func no(reason string) question { return question{verdict: refuse, reason: reason} }

// examine reads a node's request and says what decides it. It looks at the
// request alone.
func examine(node string, a authorizer.Attributes) question {
	if !a.IsResourceRequest() {
		return question{verdict: static}
	}
	switch (resource{a.GetAPIGroup(), a.GetResource()}) {
	case resource{"", "secrets"}:
		return readByName(a, podref.Secret, "get", "list", "watch")
	case resource{"", "configmaps"}:
		return readByName(a, podref.ConfigMap, "get", "list", "watch")
	case resource{"", "persistentvolumeclaims"}:
		if a.GetSubresource() == "status" {
			return reachable(a, podref.Claim, "update", "patch")
		}
		return readByName(a, podref.Claim, "get")
	case resource{"", "persistentvolumes"}:
		return readByName(a, podref.Volume, "get")
	case resource{"resource.k8s.io", "resourceclaims"}:
		return readByName(a, podref.ResourceClaim, "get")
	case resource{"storage.k8s.io", "volumeattachments"}:
		return ownedByName(a, Attachment, "get")
	case resource{"", "serviceaccounts"}:
		if a.GetSubresource() == "token" {
			return reachable(a, podref.ServiceAccount, "create")
		}
		return readByName(a, podref.ServiceAccount, "get")
	case resource{"", "nodes"}:
		return examineNodes(node, a)
	case resource{"", "pods"}:
		return examinePods(node, a)
	case resource{"coordination.k8s.io", "leases"}:
		if a.GetNamespace() != corev1.NamespaceNodeLease {
			return no("can only access leases in the " + corev1.NamespaceNodeLease + " system namespace")
		}
		return ownName(node, a, "lease")
	case resource{"storage.k8s.io", "csinodes"}:
		return ownName(node, a, "CSINode")
	case resource{"resource.k8s.io", "resourceslices"}:
		return examineSlices(node, a)
	case resource{"certificates.k8s.io", "podcertificaterequests"}:
		return examinePodCertificates(node, a)
	}
	return question{verdict: static}
}

type resource struct{ group, name string }

func readByName(a authorizer.Attributes, kind podref.Kind, verbs ...string) question {
	if a.GetSubresource() != "" {
		return no("cannot " + a.GetVerb() + " subresources of this type")
	}
	return reachable(a, kind, verbs...)
}

func reachable(a authorizer.Attributes, kind podref.Kind, verbs ...string) question {
	if refused := checkVerb(a, verbs); refused != "" {
		return no(refused)
	}
	if a.GetName() == "" {
		return no("No Object name found")
	}
	if a.GetNamespace() == "" && kind != podref.Volume {
		return no("can only read namespaced object of this type")
	}
	ref := podref.Ref{Kind: kind, Namespace: a.GetNamespace(), Name: a.GetName()}
	if kind == podref.Volume {
		ref.Namespace = ""
	}
	return question{verdict: ask, ref: &ref, reason: "no relationship found between node and this object"}
}

func ownedByName(a authorizer.Attributes, kind ownedKind, verbs ...string) question {
	if refused := checkVerb(a, verbs); refused != "" || a.GetSubresource() != "" {
		return no("can only " + strings.Join(verbs, "/") + " individual resources of this type")
	}
	if a.GetName() == "" {
		return no("No Object name found")
	}
	return question{verdict: ask, owned: &owned{kind, a.GetName()}, reason: "no relationship found between node and this object"}
}

func checkVerb(a authorizer.Attributes, verbs []string) string {
	if slices.Contains(verbs, a.GetVerb()) {
		return ""
	}
	return "can only " + strings.Join(verbs, "/") + " individual resources of this type"
}

func examineNodes(node string, a authorizer.Attributes) question {
	switch a.GetSubresource() {
	case "status":
		return question{verdict: static}
	case "":
	default:
		return no("cannot access this subresource of nodes")
	}
	switch a.GetVerb() {
	case "create", "update", "patch":
		// Whose Node is written, and which parts of it, NodeRestriction checks.
		return question{verdict: static}
	case "get", "list", "watch":
		if a.GetName() == node || selects(a, "metadata.name", node) {
			return question{verdict: allow}
		}
		return no("node '" + node + "' cannot read '" + a.GetName() + "', only its own Node object")
	}
	return no("nodes cannot " + a.GetVerb() + " nodes")
}

func examinePods(node string, a authorizer.Attributes) question {
	switch a.GetSubresource() {
	case "":
	case "status", "eviction":
		return question{verdict: static}
	default:
		return no("cannot access this subresource of pods")
	}
	switch a.GetVerb() {
	case "get":
		return onThisNode(a)
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return question{verdict: allow}
		}
		if a.GetName() != "" {
			return onThisNode(a)
		}
		return no("can only list/watch pods with spec.nodeName field selector")
	}
	return question{verdict: static}
}

func onThisNode(a authorizer.Attributes) question {
	return question{verdict: ask, pod: &podKey{a.GetNamespace(), a.GetName()}, reason: "no relationship found between node and this object"}
}

// ownName allows one object named like the node. A create request does not
// carry the name yet; NodeRestriction sees it.
func ownName(node string, a authorizer.Attributes, what string) question {
	if a.GetSubresource() != "" {
		return no("cannot access subresources of a " + what)
	}
	switch a.GetVerb() {
	case "create":
		return question{verdict: allow}
	case "get", "update", "patch", "delete":
		if a.GetName() == node {
			return question{verdict: allow}
		}
		return no("can only access " + what + " with the same name as the requesting node")
	}
	return no("can only get, create, update, patch, or delete a " + what)
}

func examineSlices(node string, a authorizer.Attributes) question {
	if a.GetSubresource() != "" {
		return no("cannot access subresources of a ResourceSlice")
	}
	switch a.GetVerb() {
	case "create":
		// Whose slice it is, NodeRestriction checks.
		return question{verdict: allow}
	case "get", "update", "patch", "delete":
		return ownedByName(a, Slice, "get", "update", "patch", "delete")
	case "list", "watch", "deletecollection":
		if selects(a, "spec.nodeName", node) {
			return question{verdict: allow}
		}
		return no("can only list/watch/deletecollection resourceslices with spec.nodeName field selector")
	}
	return no("cannot " + a.GetVerb() + " resourceslices")
}

// examinePodCertificates lets a node ask for certificates and read the answers;
// what is in its requests, NodeRestriction checks.
func examinePodCertificates(node string, a authorizer.Attributes) question {
	if a.GetSubresource() != "" {
		return no("cannot access subresources of a PodCertificateRequest")
	}
	switch a.GetVerb() {
	case "create":
		return question{verdict: allow}
	case "get":
		if a.GetName() == "" {
			return no("No Object name found")
		}
		return question{verdict: ask, owned: &owned{PodCertificate, a.GetNamespace() + "/" + a.GetName()},
			reason: "no relationship found between node and this object"}
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return question{verdict: allow}
		}
		return no("can only list/watch podcertificaterequests with spec.nodeName field selector")
	}
	return no("cannot " + a.GetVerb() + " podcertificaterequests")
}

// selects says whether the request is limited to objects whose field has this
// value.
func selects(a authorizer.Attributes, field, value string) bool {
	requirements, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range requirements {
		if r.Field == field && r.Value == value && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
			return true
		}
	}
	return false
}
