// Package route keeps a route in the cloud for every pod CIDR of every node.
package route

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// plan is what has to change in the cloud. Kept are the routes that are right,
// by node; a node that needs none is in Bare.
type plan struct {
	Delete []*cloudprovider.Route
	Create []*cloudprovider.Route
	Kept   map[string]int
	Bare   []string
}

// compare sets the routes there are against those the nodes need. Only routes
// into the cluster's own ranges are ours to delete; a blackhole there always is.
func compare(nodes []*v1.Node, have []*cloudprovider.Route, cluster []netip.Prefix) plan {
	p := plan{Kept: map[string]int{}}
	need := map[netip.Prefix]*v1.Node{}
	for _, n := range nodes {
		ranges := podRanges(n)
		if len(ranges) == 0 {
			p.Bare = append(p.Bare, n.Name)
		}
		for _, r := range ranges {
			need[r] = n
		}
	}
	for _, r := range have {
		dest, err := netip.ParsePrefix(r.DestinationCIDR)
		if err != nil || !ours(dest, cluster) {
			continue
		}
		n := need[dest.Masked()]
		if n != nil && !r.Blackhole && r.TargetNode == types.NodeName(n.Name) && sameAddresses(r, n) {
			p.Kept[n.Name]++
			delete(need, dest.Masked())
			continue
		}
		p.Delete = append(p.Delete, r)
	}
	for dest, n := range need {
		p.Create = append(p.Create, &cloudprovider.Route{TargetNode: types.NodeName(n.Name), TargetNodeAddresses: n.Status.Addresses,
			DestinationCIDR: dest.String()})
	}
	slices.SortFunc(p.Create, func(a, b *cloudprovider.Route) int { return strings.Compare(a.DestinationCIDR, b.DestinationCIDR) })
	return p
}

func podRanges(n *v1.Node) (out []netip.Prefix) {
	for _, text := range n.Spec.PodCIDRs {
		if r, err := netip.ParsePrefix(text); err == nil {
			out = append(out, r.Masked())
		}
	}
	return out
}

// sameAddresses compares a route's targets with the node's addresses, for
// providers that tell them.
func sameAddresses(r *cloudprovider.Route, n *v1.Node) bool {
	if !r.EnableNodeAddresses {
		return true
	}
	key := func(a v1.NodeAddress) string { return string(a.Type) + " " + a.Address }
	var a, b []string
	for _, x := range r.TargetNodeAddresses {
		a = append(a, key(x))
	}
	for _, x := range n.Status.Addresses {
		b = append(b, key(x))
	}
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func ours(dest netip.Prefix, cluster []netip.Prefix) bool {
	return slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Bits() <= dest.Bits() && c.Contains(dest.Addr()) })
}

// condition is what the node's NetworkUnavailable condition should say.
func condition(made bool) v1.NodeCondition {
	if made {
		return v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse, Reason: "RouteCreated",
			Message: "RouteController created a route"}
	}
	return v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: "NoRouteCreated",
		Message: "RouteController failed to create a route"}
}

// says whether the node has the condition already.
func says(n *v1.Node, want v1.NodeCondition) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == want.Type && c.Status == want.Status })
}
