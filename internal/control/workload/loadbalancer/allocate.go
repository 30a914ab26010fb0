package loadbalancer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PoolClass is the loadBalancerClass of Services that want an address of a pool.
const PoolClass = "berth.dev/pool"

// What a Service may say of the pool address it wants. spec.loadBalancerIP,
// deprecated since 1.24 but in use, is the same as addressesKey with one.
const (
	addressesKey = "berth.dev/load-balancer-ips"
	poolKey      = "berth.dev/load-balancer-pool"
	// shareKey lets Services with the same value have one address, as long as
	// their ports differ.
	shareKey = "berth.dev/load-balancer-allow-shared-ip"
)

// poolInput is what decides over the addresses of all Services of the pools.
type poolInput struct {
	// Services are those that want an address of a pool.
	Services []*v1.Service
	// Pools are in the order of the command line.
	Pools []Pool
	// Given are the addresses that Services have, by UID; also of Services that
	// are not among those above. No Service gets another's in the same round, so
	// that whoever writes the results one by one never has two with one.
	Given map[types.UID][]netip.Addr
	// Nodes names the node of each address that a node has.
	Nodes map[netip.Addr]string
}

// poolResult is what one Service gets.
type poolResult struct {
	// Addresses are in the order of the Service's families.
	Addresses []netip.Addr
	// Pools names the pool of each address.
	Pools []string
	// Problem says why something is missing; empty means all is well.
	Problem string
}

// planPools gives addresses to Services. An address given stays while the
// Service may have it; of two that have one, the older Service keeps it.
func planPools(in poolInput) map[types.UID]poolResult {
	p := &poolPlan{poolInput: in, holders: map[netip.Addr][]*v1.Service{}, reserved: map[netip.Addr][]types.UID{},
		next: map[cursor]netip.Addr{}, out: map[types.UID]poolResult{}}
	for uid, addrs := range in.Given {
		for _, a := range addrs {
			p.reserved[a] = append(p.reserved[a], uid)
		}
	}
	order := slices.SortedFunc(slices.Values(in.Services), func(a, b *v1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(string(a.UID), string(b.UID)))
	})
	kept := map[types.UID][]netip.Addr{}
	for _, s := range order {
		w := p.wish(s)
		for _, a := range in.Given[s.UID] {
			if w.problem == "" && p.refuses(s, w, a) == "" {
				kept[s.UID] = append(kept[s.UID], a)
				p.holders[a] = append(p.holders[a], s)
			}
		}
	}
	for _, s := range order {
		p.out[s.UID] = p.give(s, p.wish(s), kept[s.UID])
	}
	return p.out
}

type poolPlan struct {
	poolInput
	// holders are the Services of this round's results by address.
	holders map[netip.Addr][]*v1.Service
	// reserved are those that have an address before this round.
	reserved map[netip.Addr][]types.UID
	// next is where the search for a free address begins.
	next map[cursor]netip.Addr
	out  map[types.UID]poolResult
}

// cursor is one range of a pool.
type cursor struct{ pool, part int }

// wish is what a Service asks for.
type wish struct {
	addresses []netip.Addr
	field     string // that names the addresses
	pool      string
	problem   string
}

func (p *poolPlan) wish(s *v1.Service) wish {
	var w wish
	w.pool = s.Annotations[poolKey]
	if w.pool != "" && !slices.ContainsFunc(p.Pools, func(o Pool) bool { return o.Name == w.pool }) {
		w.problem = fmt.Sprintf("annotation %s names pool %q; there are: %s", poolKey, w.pool, poolNames(p.Pools))
		return w
	}
	text := s.Annotations[addressesKey]
	w.field = "annotation " + addressesKey
	if text == "" {
		text, w.field = s.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	}
	seen := map[v1.IPFamily]bool{}
	for _, item := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(item)
		if err != nil || a.Zone() != "" {
			w.problem = fmt.Sprintf("%s: %q is not an IP address", w.field, item)
			return w
		}
		a = a.Unmap()
		if seen[family(a)] {
			w.problem = fmt.Sprintf("%s: %s is a second address of family %s; a Service has one of each", w.field, a, family(a))
			return w
		}
		seen[family(a)] = true
		w.addresses = append(w.addresses, a)
	}
	return w
}

// asked is the address of a family that a Service asks for.
func (w wish) asked(f v1.IPFamily) (netip.Addr, bool) {
	i := slices.IndexFunc(w.addresses, func(a netip.Addr) bool { return family(a) == f })
	if i < 0 {
		return netip.Addr{}, false
	}
	return w.addresses[i], true
}

// refuses says why a Service may not have an address; empty if it may.
func (p *poolPlan) refuses(s *v1.Service, w wish, a netip.Addr) string {
	if !slices.Contains(s.Spec.IPFamilies, family(a)) {
		return fmt.Sprintf("address %s is of family %s, and spec.ipFamilies of the Service are %v", a, family(a), s.Spec.IPFamilies)
	}
	if want, ok := w.asked(family(a)); ok && want != a {
		return fmt.Sprintf("the Service asks for %s", want)
	}
	i := slices.IndexFunc(p.Pools, func(o Pool) bool { return o.has(a) })
	if i < 0 {
		return fmt.Sprintf("address %s is in no pool; there are: %s", a, poolNames(p.Pools))
	}
	if w.pool != "" && p.Pools[i].Name != w.pool {
		return fmt.Sprintf("address %s is in pool %s, and annotation %s names pool %s", a, p.Pools[i].Name, poolKey, w.pool)
	}
	if n, ok := p.Nodes[a]; ok {
		return fmt.Sprintf("address %s of pool %s is an address of Node %s; take it out of the pool", a, p.Pools[i].Name, n)
	}
	for _, h := range p.holders[a] {
		if why := cannotShare(s, h); why != "" {
			return fmt.Sprintf("address %s belongs to Service %s/%s: %s", a, h.Namespace, h.Name, why)
		}
	}
	return ""
}

// cannotShare says why two Services cannot have one address; empty if they can.
// With policy Local both must run on the same nodes, since one node announces
// the address.
func cannotShare(a, b *v1.Service) string {
	if a.UID == b.UID {
		return ""
	}
	if key := a.Annotations[shareKey]; key == "" || key != b.Annotations[shareKey] {
		return fmt.Sprintf("choose another, or give both Services annotation %s with one value", shareKey)
	}
	taken := Ports(b)
	for _, port := range Ports(a) {
		if slices.Contains(taken, port) {
			return fmt.Sprintf("both have port %s; Services with one address need different ports", port)
		}
	}
	local := v1.ServiceExternalTrafficPolicyLocal
	if (a.Spec.ExternalTrafficPolicy == local || b.Spec.ExternalTrafficPolicy == local) &&
		(a.Spec.ExternalTrafficPolicy != b.Spec.ExternalTrafficPolicy || !maps.Equal(a.Spec.Selector, b.Spec.Selector)) {
		return "with externalTrafficPolicy Local, Services with one address need the same policy and the same selector"
	}
	return ""
}

// give completes what a Service kept.
func (p *poolPlan) give(s *v1.Service, w wish, kept []netip.Addr) poolResult {
	if w.problem != "" {
		return poolResult{Problem: w.problem}
	}
	if len(p.Pools) == 0 {
		return poolResult{Problem: "the cluster has no pool of addresses; start its servers with --load-balancer-pool NAME=CIDR"}
	}
	for _, a := range w.addresses {
		if why := p.refuses(s, w, a); why != "" && !slices.Contains(kept, a) {
			return poolResult{Problem: why}
		}
	}
	var out poolResult
	for _, f := range s.Spec.IPFamilies {
		at := slices.IndexFunc(kept, func(a netip.Addr) bool { return family(a) == f })
		var a netip.Addr
		var why string
		if at >= 0 {
			a = kept[at]
		} else if !p.anyHas(f) && len(s.Spec.IPFamilies) > 1 && policyOf(s) == v1.IPFamilyPolicyPreferDualStack {
			continue
		} else if a, why = p.free(s, w, f); why != "" {
			out.Problem = cmp.Or(out.Problem, why)
			continue
		}
		out.Addresses = append(out.Addresses, a)
		j := slices.IndexFunc(p.Pools, func(o Pool) bool { return o.has(a) })
		out.Pools = append(out.Pools, p.Pools[j].Name)
	}
	if len(out.Addresses) == 0 && out.Problem == "" {
		out.Problem = fmt.Sprintf("no pool has addresses of the families %v; there are: %s", s.Spec.IPFamilies, poolNames(p.Pools))
	}
	if out.Problem != "" && len(kept) == 0 && policyOf(s) == v1.IPFamilyPolicyRequireDualStack {
		return poolResult{Problem: out.Problem} // all or nothing
	}
	for _, a := range out.Addresses {
		if !slices.Contains(kept, a) {
			p.holders[a] = append(p.holders[a], s)
		}
	}
	return out
}

func policyOf(s *v1.Service) v1.IPFamilyPolicy {
	if s.Spec.IPFamilyPolicy == nil {
		return v1.IPFamilyPolicySingleStack
	}
	return *s.Spec.IPFamilyPolicy
}

func (p *poolPlan) anyHas(f v1.IPFamily) bool {
	return slices.ContainsFunc(p.Pools, func(o Pool) bool { return o.hasFamily(f) })
}

// free finds an address of a family: the one asked for; one of a Service that
// shares; or the first that nobody has.
func (p *poolPlan) free(s *v1.Service, w wish, f v1.IPFamily) (netip.Addr, string) {
	if a, ok := w.asked(f); ok {
		if p.leaving(s, a) {
			return a, fmt.Sprintf("address %s is being given back by another Service", a)
		}
		return a, ""
	}
	if key := s.Annotations[shareKey]; key != "" {
		for _, a := range slices.SortedFunc(maps.Keys(p.holders), netip.Addr.Compare) {
			if family(a) == f && p.holders[a][0].Annotations[shareKey] == key && p.refuses(s, w, a) == "" && !p.leaving(s, a) {
				return a, ""
			}
		}
	}
	var tried []string
	for i, pool := range p.Pools {
		if w.pool != "" && pool.Name != w.pool || w.pool == "" && pool.manual || !pool.hasFamily(f) {
			continue
		}
		for j := range pool.ranges {
			if a, ok := p.search(s, w, cursor{i, j}, f); ok {
				return a, ""
			}
		}
		tried = append(tried, p.account(pool, f))
	}
	if len(tried) == 0 {
		what := "no pool that gives addresses unasked has"
		if w.pool != "" {
			what = "pool " + w.pool + " does not have"
		}
		return netip.Addr{}, fmt.Sprintf("%s addresses of family %s; there are: %s", what, f, poolNames(p.Pools))
	}
	return netip.Addr{}, fmt.Sprintf("no free address of family %s: %s; add addresses with --load-balancer-pool, or delete Services", f,
		strings.Join(tried, ", "))
}

// leaving says whether an address is another's until its status is written.
func (p *poolPlan) leaving(s *v1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(p.reserved[a], func(uid types.UID) bool {
		return uid != s.UID && !slices.ContainsFunc(p.holders[a], func(h *v1.Service) bool { return h.UID == uid })
	})
}

// search walks on through a range; addresses behind the cursor stay taken for
// the rest of the round.
func (p *poolPlan) search(s *v1.Service, w wish, at cursor, f v1.IPFamily) (netip.Addr, bool) {
	r := p.Pools[at.pool].ranges[at.part]
	if family(r.first) != f {
		return netip.Addr{}, false
	}
	a, ok := p.next[at]
	if !ok {
		a = r.first
	}
	for ; a.IsValid() && r.has(a); a = a.Next() {
		if r.usable(a) && len(p.holders[a]) == 0 && len(p.reserved[a]) == 0 && p.refuses(s, w, a) == "" {
			p.next[at] = a
			return a, true
		}
	}
	p.next[at] = a
	return netip.Addr{}, false
}

// account tells how full a pool is.
func (p *poolPlan) account(pool Pool, f v1.IPFamily) string {
	used := map[netip.Addr]bool{}
	nodes := 0
	for a, h := range p.holders {
		if len(h) > 0 && family(a) == f && pool.has(a) {
			used[a] = true
		}
	}
	for a := range p.reserved {
		if family(a) == f && pool.has(a) {
			used[a] = true
		}
	}
	for a := range p.Nodes {
		if family(a) == f && pool.has(a) {
			nodes++
		}
	}
	text := fmt.Sprintf("pool %s has %d addresses, %d are given", pool.Name, pool.size(f), len(used))
	if nodes > 0 {
		text += fmt.Sprintf(" and %d are nodes' own", nodes)
	}
	return text
}
