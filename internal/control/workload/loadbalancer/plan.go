// Package loadbalancer gives Services of type LoadBalancer the addresses of
// nodes, or addresses of pools. It needs no pods and no packets of its own: the
// proxy on every node already answers on the addresses in a Service's status,
// and internal/proxy/announce leads those of pools to one node.
package loadbalancer

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// Class is the loadBalancerClass of Services that want the addresses of nodes;
// a Service without a class wants them too, unless Config says otherwise.
const Class = "berth.dev/node"

// MaxNodes bounds the addresses of one Service: with more nodes than this each
// node that comes or goes would otherwise rewrite every Service.
const MaxNodes = 16

// Labels and taints that keep a node out of load balancers (KEP-1143, and the
// cluster autoscaler's sign that a node is about to go).
const (
	excludeLabel  = v1.LabelNodeExcludeBalancers
	autoscalerKey = "ToBeDeletedByClusterAutoscaler"
)

// Port is a port on a node's addresses.
type Port struct {
	Protocol v1.Protocol
	Number   int32
}

// String is the form of events: 80/TCP.
func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

// input is what decides over one Service.
type input struct {
	Service *v1.Service
	// Nodes are all nodes, in any order.
	Nodes []*v1.Node
	// Local names the nodes that run ready endpoints of the Service. It is
	// looked at only with externalTrafficPolicy Local.
	Local map[string]bool
	// Reserved are ports that no Service may take on any node, with the words
	// that name their holder.
	Reserved map[Port]string
	// Rivals are other Services of this controller with a port in common.
	Rivals []*v1.Service
	// Pods are pods that hold one of the Service's ports on their node.
	Pods []*v1.Pod
	// Classless is the class of Services that name none; empty is Class.
	Classless string
}

// result is what the Service's status should say, and because of what.
type result struct {
	// Ignore is set when the Service is not this controller's: of another
	// class, or its status is written by another party.
	Ignore bool
	// Ingress is sorted by the order of the Service's families, then address.
	Ingress []v1.LoadBalancerIngress
	// Nodes are the names of the nodes whose addresses were taken.
	Nodes []string
	// Problem says why there are fewer nodes than there could be; it is a
	// sentence for people. Empty means all is well.
	Problem string
	// Held is set when the problem is a port that something else holds.
	Held bool
}

// plan decides which addresses a Service gets.
func plan(in input) result {
	s := in.Service
	if !mine(s, in.Classless) || foreign(s, in.Nodes) && !hasPoolCondition(s) {
		return result{Ignore: true}
	}
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
		return result{}
	}
	ports := Ports(s)
	for _, p := range ports {
		if holder, ok := in.Reserved[p]; ok {
			return result{Held: true, Problem: fmt.Sprintf("port %s belongs to %s; choose another port for the Service", p, holder)}
		}
		for _, r := range in.Rivals {
			if outranks(r, s, in.Classless) && slices.Contains(Ports(r), p) {
				return result{Held: true,
					Problem: fmt.Sprintf("port %s belongs to the older Service %s/%s; choose another port, or another class", p,
						r.Namespace, r.Name)}
			}
		}
	}
	return choose(in, ports)
}

// mine says whether the Service wants addresses of nodes. classless is the class
// of those that name none.
func mine(s *v1.Service, classless string) bool {
	if s.Spec.LoadBalancerClass == nil {
		return cmp.Or(classless, Class) == Class
	}
	return *s.Spec.LoadBalancerClass == Class
}

// foreign says whether another controller answers for a Service without a
// class: its status names something that is no address of a node. A cluster
// with such a controller needs no switch to keep the two apart.
func foreign(s *v1.Service, nodes []*v1.Node) bool {
	in := s.Status.LoadBalancer.Ingress
	if s.Spec.LoadBalancerClass != nil || len(in) == 0 {
		return false
	}
	for _, i := range in {
		if slices.ContainsFunc(nodes, func(n *v1.Node) bool {
			return slices.ContainsFunc(n.Status.Addresses, func(a v1.NodeAddress) bool { return i.IP != "" && a.Address == i.IP })
		}) {
			return false
		}
	}
	return true
}

// Ports are a Service's ports on its load balancer.
func Ports(s *v1.Service) []Port {
	out := make([]Port, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		out = append(out, Port{cmp.Or(p.Protocol, v1.ProtocolTCP), p.Port})
	}
	return out
}

// outranks says whether a keeps a port that b wants too: the older Service
// does, and of two of the same second the one that has an address already, or
// else the one with the smaller UID.
func outranks(a, b *v1.Service, classless string) bool {
	if a.UID == b.UID || a.Spec.Type != v1.ServiceTypeLoadBalancer || a.DeletionTimestamp != nil || !mine(a, classless) {
		return false
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	if has, other := len(a.Status.LoadBalancer.Ingress) > 0, len(b.Status.LoadBalancer.Ingress) > 0; has != other {
		return has
	}
	return a.UID < b.UID
}

// choose takes the nodes that can answer for the Service.
func choose(in input, ports []Port) result {
	var out result
	var able []*v1.Node
	var why string
	nodes := slices.SortedFunc(slices.Values(in.Nodes), func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if p := unfit(n); p != "" {
			why = cmp.Or(why, p)
			continue
		}
		if in.Service.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && !in.Local[n.Name] {
			why = cmp.Or(why, "no node runs a ready endpoint, and externalTrafficPolicy is Local")
			continue
		}
		if p := podHolds(in.Pods, n.Name, ports); p != "" {
			out.Problem, out.Held = cmp.Or(out.Problem, p), true
			continue
		}
		if len(addresses(in.Service, n)) == 0 {
			why = cmp.Or(why, fmt.Sprintf("Node %s has no address of the families %v of the Service", n.Name, in.Service.Spec.IPFamilies))
			continue
		}
		able = append(able, n)
	}
	taken := spread(in.Service, able)
	var all []netip.Addr
	for _, n := range taken {
		out.Nodes = append(out.Nodes, n.Name)
		all = append(all, addresses(in.Service, n)...)
	}
	slices.SortFunc(all, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(rank(in.Service, a), rank(in.Service, b)), a.Compare(b))
	})
	vip := v1.LoadBalancerIPModeVIP
	for _, a := range slices.Compact(all) {
		out.Ingress = append(out.Ingress, v1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	if len(out.Ingress) == 0 && out.Problem == "" {
		out.Problem = cmp.Or(why, "the cluster has no node")
	}
	return out
}

// unfit says why a node takes no traffic from outside; empty if it does. The
// clients dial nodes themselves, so no one but this checks that a node is
// Ready (unlike a cloud's balancer, KEP-3458).
func unfit(n *v1.Node) string {
	if n.DeletionTimestamp != nil {
		return fmt.Sprintf("Node %s is being deleted", n.Name)
	}
	if _, ok := n.Labels[excludeLabel]; ok {
		return fmt.Sprintf("Node %s has the label %s", n.Name, excludeLabel)
	}
	if slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == autoscalerKey }) {
		return fmt.Sprintf("Node %s has the taint %s", n.Name, autoscalerKey)
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady &&
			c.Status == v1.ConditionTrue
	}) {
		return fmt.Sprintf("Node %s is not Ready", n.Name)
	}
	return ""
}

// podHolds names the pod that holds one of the ports on a node; empty if none.
func podHolds(pods []*v1.Pod, node string, ports []Port) string {
	for _, p := range pods {
		if p.Spec.NodeName != node {
			continue
		}
		for _, held := range hostPorts(p) {
			if slices.Contains(ports, held) {
				return fmt.Sprintf("port %s of Node %s belongs to Pod %s/%s; choose another port for one of them", held, node, p.Namespace,
					p.Name)
			}
		}
	}
	return ""
}

// hostPorts are the ports that a pod holds on its node: the host ports of its
// containers, which are all their ports when the pod uses the node's network.
// A pod that has ended holds none.
func hostPorts(p *v1.Pod) []Port {
	if p.Spec.NodeName == "" || podutil.Terminal(p) {
		return nil
	}
	var out []Port
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, cp := range c.Ports {
				n := cp.HostPort
				if p.Spec.HostNetwork {
					n = cp.ContainerPort
				}
				if n != 0 {
					out = append(out, Port{cmp.Or(cp.Protocol, v1.ProtocolTCP), n})
				}
			}
		}
	}
	return out
}

// addresses are a node's addresses that the Service may have: its ExternalIPs
// if it has any of the Service's families, else its InternalIPs; one a family.
// spec.loadBalancerIP, deprecated but in use, narrows them to itself.
func addresses(s *v1.Service, n *v1.Node) []netip.Addr {
	for _, kind := range []v1.NodeAddressType{v1.NodeExternalIP, v1.NodeInternalIP} {
		var out []netip.Addr
		seen := map[v1.IPFamily]bool{}
		for _, na := range n.Status.Addresses {
			a, err := netip.ParseAddr(na.Address)
			if na.Type != kind || err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
				continue
			}
			f := family(a)
			if seen[f] || !slices.Contains(s.Spec.IPFamilies, f) || s.Spec.LoadBalancerIP != "" && s.Spec.LoadBalancerIP != na.Address {
				continue
			}
			seen[f] = true
			out = append(out, a.Unmap())
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// spread keeps at most MaxNodes nodes: those whose address the Service has
// already, then those that a hash of Service and node puts first, so that many
// Services use many nodes and a new node moves nothing.
func spread(s *v1.Service, nodes []*v1.Node) []*v1.Node {
	if len(nodes) > MaxNodes {
		has := map[string]bool{}
		for _, i := range s.Status.LoadBalancer.Ingress {
			has[i.IP] = true
		}
		slices.SortFunc(nodes, func(a, b *v1.Node) int {
			return cmp.Or(cmp.Compare(order(s, a, has), order(s, b, has)), cmp.Compare(hash(s, a), hash(s, b)),
				strings.Compare(a.Name, b.Name))
		})
		nodes = nodes[:MaxNodes]
	}
	slices.SortFunc(nodes, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

func order(s *v1.Service, n *v1.Node, has map[string]bool) int {
	if slices.ContainsFunc(addresses(s, n), func(a netip.Addr) bool { return has[a.String()] }) {
		return 0
	}
	return 1
}

func hash(s *v1.Service, n *v1.Node) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s.UID))
	h.Write([]byte(n.Name))
	return h.Sum32()
}

func family(a netip.Addr) v1.IPFamily {
	if a.Unmap().Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

func rank(s *v1.Service, a netip.Addr) int { return slices.Index(s.Spec.IPFamilies, family(a)) }
