package admit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
)

// judgeNode lets a node write its own Node object, but not decide over it: its
// taints, its owners and the labels that others rely on are not its to change.
func judgeNode(node string, a admission.Attributes) error {
	name := a.GetName()
	switch a.GetOperation() {
	case admission.Create:
		object, ok := a.GetObject().(*corev1.Node)
		if !ok {
			return wrongObject(a)
		}
		//lint:ignore SA1019 gone, but still a field to smuggle something in
		if object.Spec.ConfigSource != nil {
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if forbidden := forbiddenLabels(changedKeys(nil, object.Labels)); len(forbidden) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(forbidden, ", "))
		}
		if name == "" {
			name = object.Name
		}
	case admission.Update:
		if err := judgeNodeUpdate(node, a); err != nil && name == node {
			return err
		}
	}
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	return nil
}

func judgeNodeUpdate(node string, a admission.Attributes) error {
	now, ok := a.GetObject().(*corev1.Node)
	old, alsoOk := a.GetOldObject().(*corev1.Node)
	if !ok || !alsoOk {
		return wrongObject(a)
	}
	//lint:ignore SA1019 see judgeNode
	is, was := now.Spec.ConfigSource, old.Spec.ConfigSource
	if is != nil && !equality.Semantic.DeepEqual(is, was) {
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	}
	if !equality.Semantic.DeepEqual(now.Spec.Taints, old.Spec.Taints) {
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	}
	if forbidden := forbiddenLabels(changedKeys(old.Labels, now.Labels)); len(forbidden) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(forbidden, ", "))
	}
	if !equality.Semantic.DeepEqual(now.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	return nil
}

// changedKeys returns the labels that were added, changed or removed.
func changedKeys(old, now map[string]string) []string {
	var keys []string
	for key, value := range now {
		if was, there := old[key]; !there || was != value {
			keys = append(keys, key)
		}
	}
	for key := range old {
		if _, there := now[key]; !there {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// restrictedDomain is for labels that keep workloads apart: no node may give
// them to itself.
const restrictedDomain = "node-restriction.kubernetes.io"

var (
	// ownLabels are the labels of Kubernetes' own domains a node may set on
	// itself.
	ownLabels = []string{
		"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
		"node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type",
	}
	// ownDomains are domains, with their subdomains, whose labels it may set.
	ownDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
	// reservedDomains are Kubernetes' own; all other domains are free.
	reservedDomains = []string{"kubernetes.io", "k8s.io"}
)

func forbiddenLabels(keys []string) []string {
	return slices.DeleteFunc(keys, func(key string) bool {
		domain, _, qualified := strings.Cut(key, "/")
		switch {
		case !qualified:
			return true
		case within(domain, restrictedDomain):
			return false
		case slices.Contains(ownLabels, key):
			return true
		}
		inDomain := func(of string) bool { return within(domain, of) }
		return slices.ContainsFunc(ownDomains, inDomain) || !slices.ContainsFunc(reservedDomains, inDomain)
	})
}

func within(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
