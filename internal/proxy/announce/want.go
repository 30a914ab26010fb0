package announce

import (
	"hash/fnv"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// mostCandidates bounds the nodes that may take an address, and with them who
// watches whom.
const mostCandidates = 8

// autoscalerKey is the taint of nodes that the cluster autoscaler removes.
const autoscalerKey = "ToBeDeletedByClusterAutoscaler"

func hash(key, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	h.Write([]byte{0})
	h.Write([]byte(name))
	// The last step of MurmurHash3: names that differ in their last letter only
	// would be neighbours otherwise.
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// fit says whether a node takes traffic from outside: it is Ready, stays, and
// is not excluded (KEP-1143).
func fit(n *v1.Node) bool {
	_, excluded := n.Labels[v1.LabelNodeExcludeBalancers]
	return !excluded && n.DeletionTimestamp == nil &&
		!slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == autoscalerKey }) &&
		slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		})
}

// addresses are the pool addresses of a Service: those in its status while the
// condition says that they are of a pool.
func addresses(s *v1.Service, condition string) []netip.Addr {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil ||
		!meta.IsStatusConditionTrue(s.Status.Conditions, condition) {
		return nil
	}
	var out []netip.Addr
	for _, i := range s.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err == nil && (i.IPMode == nil || *i.IPMode == v1.LoadBalancerIPModeVIP) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// balanced is what matters of a Service with addresses of a pool.
type balanced struct {
	addresses []netip.Addr
	// local are the nodes with ready endpoints, nil if any node will do.
	local map[string]bool
}

// wanted says who may announce each address: nodes that are fit, that run an
// endpoint of every Service of policy Local with that address, and of these the
// same few for all addresses.
func wanted(self string, services []balanced, nodes []*v1.Node) map[netip.Addr]want {
	able := map[string]bool{}
	for _, n := range nodes {
		if fit(n) {
			able[n.Name] = true
		}
	}
	local := map[netip.Addr][]map[string]bool{}
	for _, s := range services {
		for _, a := range s.addresses {
			local[a] = local[a][:len(local[a]):len(local[a])]
			if s.local != nil {
				local[a] = append(local[a], s.local)
			}
		}
	}
	everywhere := candidates(able, nil)
	out := map[netip.Addr]want{}
	for a, need := range local {
		w := want{order: everywhere, fit: able[self]}
		if len(need) > 0 {
			w.order = candidates(able, need)
			w.fit = w.fit && !slices.ContainsFunc(need, func(m map[string]bool) bool { return !m[self] })
		}
		w.order = sorted(a.String(), w.order)
		out[a] = w
	}
	return out
}

// candidates are the first few of the nodes that are in all sets.
func candidates(able map[string]bool, need []map[string]bool) []string {
	var names []string
	for n := range able {
		if !slices.ContainsFunc(need, func(m map[string]bool) bool { return !m[n] }) {
			names = append(names, n)
		}
	}
	names = sorted("", names)
	return names[:min(len(names), mostCandidates)]
}

// ready are the nodes that run ready endpoints of a Service.
func ready(list []*discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		for _, ep := range s.Endpoints {
			if ep.NodeName != nil && (ep.Conditions.Ready == nil || *ep.Conditions.Ready) {
				out[*ep.NodeName] = true
			}
		}
	}
	return out
}
