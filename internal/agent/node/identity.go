package node

import (
	"fmt"
	"net/netip"
	"runtime"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

const (
	annotationAttachDetach   = "volumes.kubernetes.io/controller-managed-attach-detach"
	annotationProvidedNodeIP = "alpha.kubernetes.io/provided-node-ip"
	taintUninitialized       = "node.cloudprovider.kubernetes.io/uninitialized"
)

// Identity is what the host's administrator decided about the Node object.
type Identity struct {
	// Name is the Node's name, see Name.
	Name string
	// NodeIPs are the addresses of --node-ip, see ParseNodeIPs.
	NodeIPs []netip.Addr
	// Labels are those of --node-labels; they win over the default labels.
	Labels map[string]string
	Taints []v1.Taint
	// ProviderID may be empty.
	ProviderID string
	// ExternalCloud is set by --cloud-provider=external: a cloud controller
	// fills in addresses, zone and provider ID.
	ExternalCloud bool
	// AttachDetach tells whether the attach-detach controller attaches volumes
	// for this node (enableControllerAttachDetach).
	AttachDetach bool
}

// KnownIPs are the addresses that are given as they are; the Node object has
// them later, and others.
func (id Identity) KnownIPs() (out []string) {
	for _, ip := range id.NodeIPs {
		if !ip.IsUnspecified() {
			out = append(out, ip.String())
		}
	}
	return out
}

// Name derives the Node's name from the host name or its override, the same
// way for registration, certificates and the Hostname address.
func Name(hostname, override string) (string, error) {
	name := hostname
	if override != "" {
		name = override
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("determining the node name: the host name is empty, set --hostname-override")
	}
	return name, nil
}

// ParseNodeIPs reads the value of --node-ip: nothing, one address (an
// unspecified one asks for the default route's address of that family), or two
// addresses of different families. Entries that are no addresses are returned
// in skipped, to be logged.
func ParseNodeIPs(value string) (ips []netip.Addr, skipped []string, err error) {
	for _, entry := range strings.Split(value, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		addr, parseErr := netip.ParseAddr(entry)
		if parseErr != nil {
			skipped = append(skipped, entry)
			continue
		}
		ips = append(ips, addr.Unmap())
	}
	switch {
	case len(ips) > 2:
		return nil, skipped, fmt.Errorf("reading --node-ip %q: at most two addresses are allowed, one per family", value)
	case len(ips) == 2 && ips[0].Is4() == ips[1].Is4():
		return nil, skipped, fmt.Errorf("reading --node-ip %q: two addresses must be of different families", value)
	case len(ips) == 2 && (ips[0].IsUnspecified() || ips[1].IsUnspecified()):
		return nil, skipped, fmt.Errorf("reading --node-ip %q: 0.0.0.0 and :: are only allowed alone", value)
	}
	return ips, skipped, nil
}

// ParseLabels reads the value of --node-labels ("a=b,c=d") and refuses labels
// that a node may not give itself.
func ParseLabels(value string) (map[string]string, error) {
	labels := map[string]string{}
	for _, entry := range strings.Split(value, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		key, val, _ := strings.Cut(entry, "=")
		labels[strings.TrimSpace(key)] = strings.TrimSpace(val)
	}
	return labels, checkLabels(labels)
}

// checkLabels refuses labels in the kubernetes.io and k8s.io domains that a
// node may not set on itself (the rule of the NodeRestriction admission).
func checkLabels(labels map[string]string) error {
	var bad []string
	for key := range labels {
		if !selfLabelAllowed(key) {
			bad = append(bad, key)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	sort.Strings(bad)
	return fmt.Errorf("checking --node-labels: a node may not set %s on itself; allowed in the kubernetes.io and k8s.io domains are %s, "+
		"and anything below kubelet.kubernetes.io/ or node.kubernetes.io/",
		strings.Join(bad, ", "), strings.Join(allowedSelfLabels, ", "))
}

var allowedSelfLabels = []string{
	v1.LabelHostname, v1.LabelOSStable, v1.LabelArchStable, kubeletapis.LabelOS, kubeletapis.LabelArch,
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
}

func selfLabelAllowed(key string) bool {
	namespace, _, ok := strings.Cut(key, "/")
	if !ok || !inDomain(namespace, "kubernetes.io") && !inDomain(namespace, "k8s.io") {
		return true
	}
	for _, allowed := range allowedSelfLabels {
		if key == allowed {
			return true
		}
	}
	return inDomain(namespace, "kubelet.kubernetes.io") || inDomain(namespace, "node.kubernetes.io")
}

func inDomain(namespace, domain string) bool {
	return namespace == domain || strings.HasSuffix(namespace, "."+domain)
}

// initial is the Node object to create if the cluster has none yet, without
// its status.
func initial(id Identity) *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: id.Name,
			Labels: map[string]string{
				v1.LabelHostname:      id.Name,
				v1.LabelOSStable:      runtime.GOOS,
				v1.LabelArchStable:    runtime.GOARCH,
				kubeletapis.LabelOS:   runtime.GOOS,
				kubeletapis.LabelArch: runtime.GOARCH,
			},
			Annotations: map[string]string{},
		},
		Spec: v1.NodeSpec{ProviderID: id.ProviderID, Taints: append([]v1.Taint(nil), id.Taints...)},
	}
	for key, value := range id.Labels {
		node.Labels[key] = value
	}
	if id.AttachDetach {
		node.Annotations[annotationAttachDetach] = "true"
	}
	if id.ExternalCloud {
		if !hasTaint(node.Spec.Taints, taintUninitialized, v1.TaintEffectNoSchedule) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: taintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
		}
		if provided := providedNodeIP(id); provided != "" {
			node.Annotations[annotationProvidedNodeIP] = provided
		}
	}
	return node
}

func hasTaint(taints []v1.Taint, key string, effect v1.TaintEffect) bool {
	for _, taint := range taints {
		if taint.Key == key && taint.Effect == effect {
			return true
		}
	}
	return false
}

// providedNodeIP is the value of the annotation that tells a cloud controller
// which address the administrator wants; empty if there is nothing to tell.
func providedNodeIP(id Identity) string {
	if !id.ExternalCloud {
		return ""
	}
	var texts []string
	for _, ip := range id.NodeIPs {
		if ip.IsUnspecified() {
			continue
		}
		texts = append(texts, ip.String())
	}
	return strings.Join(texts, ",")
}
