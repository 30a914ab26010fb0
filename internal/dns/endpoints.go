package dns

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
)

// Annotation is where a node says at which address and port its DNS answers.
const Annotation = "berth.dev/dns"

// sliceName is that of the slice of one host.
func sliceName(hostName string) string {
	name := ServiceName + "-" + hostName
	return strings.TrimRight(name[:min(len(name), 253)], "-.")
}

// endpointsOf are the slices that cluster DNS must have: one for each node
// that answers, since their ports may differ. The hints keep every pod's
// questions on its own node as long as that answers. While no node does, own
// is asked: the server in the process of the control plane.
func endpointsOf(nodes []*v1.Node, hostName string, own netip.AddrPort) []*discovery.EndpointSlice {
	var out []*discovery.EndpointSlice
	answered := false
	for _, n := range nodes {
		at, err := netip.ParseAddrPort(n.Annotations[Annotation])
		if err != nil || at.Addr().Is4() != own.Addr().Is4() || !has(n, at.Addr()) {
			continue
		}
		s := hostSlice(sliceName(n.Name), at, podutil.NodeReady(n))
		s.Endpoints[0].NodeName = ptr.To(n.Name)
		s.Endpoints[0].Hints = &discovery.EndpointHints{ForNodes: []discovery.ForNode{{Name: n.Name}}}
		answered = answered || podutil.NodeReady(n)
		out = append(out, s)
	}
	if !answered && !slices.ContainsFunc(out, func(s *discovery.EndpointSlice) bool { return s.Name == sliceName(hostName) }) {
		out = append(out, hostSlice(sliceName(hostName), own, true))
	}
	slices.SortFunc(out, func(a, b *discovery.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// has keeps a node from taking questions to an address that is not its own.
func has(n *v1.Node, ip netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a v1.NodeAddress) bool {
		return a.Type == v1.NodeInternalIP && a.Address == ip.String()
	})
}

func hostSlice(name string, at netip.AddrPort, ready bool) *discovery.EndpointSlice {
	family := discovery.AddressTypeIPv4
	if at.Addr().Is6() {
		family = discovery.AddressTypeIPv6
	}
	l := labels()
	l[discovery.LabelServiceName] = ServiceName
	// Another manager's name keeps the endpoint slice controllers away.
	l[discovery.LabelManagedBy] = manager
	port := ptr.To(int32(at.Port()))
	return &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: l},
		AddressType: family,
		Endpoints: []discovery.Endpoint{{Addresses: []string{at.Addr().String()},
			Conditions: discovery.EndpointConditions{Ready: ptr.To(ready), Serving: ptr.To(ready), Terminating: ptr.To(false)}}},
		Ports: []discovery.EndpointPort{
			{Name: ptr.To("dns"), Protocol: ptr.To(v1.ProtocolUDP), Port: port},
			{Name: ptr.To("dns-tcp"), Protocol: ptr.To(v1.ProtocolTCP), Port: port},
		},
	}
}

// abandoned says whether a slice of ours that is not wanted may go: one of a node,
// or of this host. Others are of other hosts' control planes.
func abandoned(s *discovery.EndpointSlice, hostName string) bool {
	return s.Name == sliceName(hostName) || s.Name == ServiceName || len(s.Endpoints) == 0 || s.Endpoints[0].NodeName != nil
}
