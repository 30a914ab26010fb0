// Package cloud makes nodes agree with the hosts they run on, through any
// provider of k8s.io/cloud-provider.
package cloud

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	"k8s.io/cloud-provider/node/helpers"
)

// shutdownTaint keeps pods from a host that is switched off.
var shutdownTaint = v1.Taint{Key: cloudapi.TaintNodeShutdown, Effect: v1.TaintEffectNoSchedule}

// uninitialized says that the node waits for its cloud: its agent was started
// with --cloud-provider=external.
func uninitialized(n *v1.Node) bool { return hasTaint(n, cloudapi.TaintExternalCloudProvider) }

func hasTaint(n *v1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key })
}

// without is the node's taints but those of one key; never nil.
func without(n *v1.Node, key string) []v1.Taint {
	out := []v1.Taint{}
	for _, t := range n.Spec.Taints {
		if t.Key != key {
			out = append(out, t)
		}
	}
	return out
}

// identity is what initialising a node writes beside its addresses.
type identity struct {
	ProviderID string
	Labels     map[string]string
	Taints     []v1.Taint
}

// initialise says how the node has to be, given its machine.
func initialise(n *v1.Node, m *cloudprovider.InstanceMetadata) (identity, error) {
	id := identity{ProviderID: n.Spec.ProviderID, Labels: labels(n, m), Taints: without(n, cloudapi.TaintExternalCloudProvider)}
	if id.ProviderID == "" {
		id.ProviderID = m.ProviderID
	}
	if id.ProviderID == "" {
		return identity{}, errors.New("the cloud provider gave no provider ID, which a node must have")
	}
	return id, nil
}

// labels are those that the host's kind and place ask for. Those of the
// provider's own may neither replace what is there nor be Kubernetes's.
func labels(n *v1.Node, m *cloudprovider.InstanceMetadata) map[string]string {
	out := map[string]string{}
	for _, l := range []struct {
		value string
		keys  [2]string
	}{
		{m.InstanceType, [2]string{v1.LabelInstanceType, v1.LabelInstanceTypeStable}},
		{m.Zone, [2]string{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone}},
		{m.Region, [2]string{v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion}},
	} {
		for _, key := range l.keys {
			if l.value != "" && n.Labels[key] != l.value {
				out[key] = l.value
			}
		}
	}
	for key, value := range m.AdditionalLabels {
		if _, have := n.Labels[key]; !have && !reserved(key) {
			out[key] = value
		}
	}
	return out
}

// reserved says that a label key belongs to Kubernetes.
func reserved(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	for _, d := range []string{"kubernetes.io", "k8s.io"} {
		if domain == d || strings.HasSuffix(domain, "."+d) {
			return true
		}
	}
	return false
}

// addresses are the node's addresses as the cloud knows them; changed is false
// when they are so already, or when the cloud names none. The address the agent
// was told to use must be among them and comes first; a host name that the
// cloud does not know stays the agent's.
func addresses(n *v1.Node, known []v1.NodeAddress) (out []v1.NodeAddress, changed bool, err error) {
	if len(known) == 0 {
		return nil, false, nil
	}
	out = slices.Clone(known)
	if !slices.ContainsFunc(out, isHostname) {
		if i := slices.IndexFunc(n.Status.Addresses, isHostname); i >= 0 {
			out = append(out, n.Status.Addresses[i])
		}
	}
	if ip := n.Annotations[cloudapi.AnnotationAlphaProvidedIPAddr]; ip != "" {
		if out, err = helpers.GetNodeAddressesFromNodeIP(ip, out); err != nil {
			return nil, false, fmt.Errorf("annotation %s %q: %w", cloudapi.AnnotationAlphaProvidedIPAddr, ip, err)
		}
	}
	return out, !slices.Equal(out, n.Status.Addresses), nil
}

func isHostname(a v1.NodeAddress) bool { return a.Type == v1.NodeHostName }

// InstanceState is the state of a node's machine.
type InstanceState uint8

// Absent hosts do not exist any more; Stopped ones do, but are switched off.
const (
	Running InstanceState = iota
	Stopped
	Absent
)

// action is what a host's state asks for.
type action uint8

// Delete is of the Node; Taint and Untaint are about the shutdown taint.
const (
	Nothing action = iota
	Delete
	Taint
	Untaint
)

// mustAsk says that the node's word is not enough: its machine has to be asked
// for.
func mustAsk(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status != v1.ConditionTrue
		}
	}
	return true
}

// follow decides for a node. The host only counts while the node is silent:
// a node that is ready runs on something, and loses its shutdown taint.
func follow(n *v1.Node, m InstanceState) action {
	tainted := hasTaint(n, cloudapi.TaintNodeShutdown)
	switch {
	case !mustAsk(n):
		if tainted {
			return Untaint
		}
	case m == Absent:
		return Delete
	case m == Stopped && !tainted:
		return Taint
	}
	return Nothing
}
