package loadbalancer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pools(t testing.TB, values ...string) []Pool {
	t.Helper()
	p, err := ParsePools(values)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func note(key, value string) func(*v1.Service) {
	return func(s *v1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[key] = value
	}
}

func families(policy v1.IPFamilyPolicy, f ...v1.IPFamily) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, f }
}

func port(n int32) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Ports[0].Port = n } }

func localPolicy(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }

func ips(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// TestPlanPools: what Services get, one line each: addresses (problem).
func TestPlanPools(t *testing.T) {
	lab := []string{"lab=192.0.2.10-192.0.2.11,2001:db8::10-2001:db8::11"}
	key := note(shareKey, "k")
	for name, c := range map[string]struct {
		pools    []string
		services []*v1.Service // the first is the oldest
		given    map[types.UID][]netip.Addr
		nodes    map[netip.Addr]string
		want     []string
	}{
		"the first free one":   {lab, []*v1.Service{service("a", 2), service("b", 1)}, nil, nil, []string{"192.0.2.10", "192.0.2.11"}},
		"the older goes first": {lab, []*v1.Service{service("a", 1), service("b", 2)}, nil, nil, []string{"192.0.2.11", "192.0.2.10"}},
		"what it has": {lab, []*v1.Service{service("a", 2), service("b", 1)}, map[types.UID][]netip.Addr{"b": ips("192.0.2.10")}, nil,
			[]string{"192.0.2.11", "192.0.2.10"}},
		"two that have one": {lab, []*v1.Service{service("a", 1), service("b", 2)},
			map[types.UID][]netip.Addr{"a": ips("192.0.2.10"), "b": ips("192.0.2.10")}, nil, []string{"192.0.2.11", "192.0.2.10"}},
		"one that another has until it is written": {lab[:1], []*v1.Service{service("a", 1, note(addressesKey, "192.0.2.10"))},
			map[types.UID][]netip.Addr{"gone": ips("192.0.2.10")}, nil,
			[]string{"(address 192.0.2.10 is being given back by another Service)"}},
		"exhausted": {[]string{"one=192.0.2.9", "two=192.0.2.10"}, []*v1.Service{service("a", 3), service("b", 2), service("c", 1)}, nil,
			nil,
			[]string{"192.0.2.9", "192.0.2.10", "(no free address of family IPv4: pool one has 1 addresses, 1 are given, pool two has 1 " +
				"addresses, 1 are given; add addresses with --load-balancer-pool, or delete Services)"}},
		"a node's": {lab, []*v1.Service{service("a", 1)}, nil, map[netip.Addr]string{ips("192.0.2.10")[0]: "n1"}, []string{"192.0.2.11"}},
		"a node's that it has": {lab, []*v1.Service{service("a", 1)}, map[types.UID][]netip.Addr{"a": ips("192.0.2.10")},
			map[netip.Addr]string{ips("192.0.2.10")[0]: "n1"}, []string{"192.0.2.11"}},
		"a node's that it asks for": {lab, []*v1.Service{service("a", 1, note(addressesKey, "192.0.2.10"))}, nil,
			map[netip.Addr]string{ips("192.0.2.10")[0]: "n1"},
			[]string{"(address 192.0.2.10 of pool lab is an address of Node n1; take it out of the pool)"}},
		"asked for": {lab, []*v1.Service{service("a", 1, note(addressesKey, "192.0.2.11"))}, nil, nil, []string{"192.0.2.11"}},
		"asked for in the old way": {lab, []*v1.Service{service("a", 1, func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.11" })}, nil,
			nil,
			[]string{"192.0.2.11"}},
		"asked for elsewhere": {lab, []*v1.Service{service("a", 1, note(addressesKey, "198.51.100.1"))}, nil, nil,
			[]string{"(address 198.51.100.1 is in no pool; there are: lab (192.0.2.10-192.0.2.11, 2001:db8::10-2001:db8::11))"}},
		"no address": {lab, []*v1.Service{service("a", 1, note(addressesKey, "web"))}, nil, nil,
			[]string{`(annotation berth.dev/load-balancer-ips: "web" is not an IP address)`}},
		"of the other family": {lab, []*v1.Service{service("a", 1, note(addressesKey, "2001:db8::10"))}, nil, nil,
			[]string{"(address 2001:db8::10 is of family IPv6, and spec.ipFamilies of the Service are [IPv4])"}},
		"another's": {lab, []*v1.Service{service("a", 2), service("b", 1, note(addressesKey, "192.0.2.10"))}, nil, nil,
			[]string{"192.0.2.10",
				"(address 192.0.2.10 belongs to Service default/a: choose another, or give both Services annotation " +
					"berth.dev/load-balancer-allow-shared-ip with one value)"}},
		"a pool by name": {[]string{"one=192.0.2.9", "two=192.0.2.10,autoAssign=false"},
			[]*v1.Service{service("a", 2, note(poolKey, "two")), service("b", 1)}, nil, nil, []string{"192.0.2.10", "192.0.2.9"}},
		"a pool that is not asked": {[]string{"two=192.0.2.10,autoAssign=false"}, []*v1.Service{service("a", 2)}, nil, nil,
			[]string{"(no pool that gives addresses unasked has addresses of family IPv4; there are: two (192.0.2.10))"}},
		"an unknown pool": {lab, []*v1.Service{service("a", 2, note(poolKey, "x"))}, nil, nil,
			[]string{`(annotation berth.dev/load-balancer-pool names pool "x"; there are: lab (192.0.2.10-192.0.2.11, ` +
				`2001:db8::10-2001:db8::11))`}},
		"no pool": {nil, []*v1.Service{service("a", 2)}, nil, nil,
			[]string{"(the cluster has no pool of addresses; start its servers with --load-balancer-pool NAME=CIDR)"}},
		"both families": {lab,
			[]*v1.Service{service("a", 1, families(v1.IPFamilyPolicyRequireDualStack, v1.IPv6Protocol, v1.IPv4Protocol))},
			nil, nil, []string{"2001:db8::10 192.0.2.10"}},
		"both required, one there": {[]string{"lab=192.0.2.10"}, []*v1.Service{service("a", 1,
			families(v1.IPFamilyPolicyRequireDualStack, v1.IPv4Protocol, v1.IPv6Protocol))}, nil, nil,
			[]string{"(no pool that gives addresses unasked has addresses of family IPv6; there are: lab (192.0.2.10))"}},
		"both preferred, one there": {[]string{"lab=192.0.2.10"}, []*v1.Service{service("a", 1,
			families(v1.IPFamilyPolicyPreferDualStack, v1.IPv4Protocol, v1.IPv6Protocol))}, nil, nil, []string{"192.0.2.10"}},
		"shared": {lab, []*v1.Service{service("a", 2, key), service("b", 1, key, port(81))}, nil, nil,
			[]string{"192.0.2.10", "192.0.2.10"}},
		"shared, of the same port": {lab, []*v1.Service{service("a", 2, key), service("b", 1, key)}, nil, nil,
			[]string{"192.0.2.10", "192.0.2.11"}},
		"shared, asked for, of the same port": {lab, []*v1.Service{service("a", 2, key),
			service("b", 1, key, note(addressesKey, "192.0.2.10"))},
			nil, nil, []string{"192.0.2.10", "(address 192.0.2.10 belongs to Service default/a: both have port 80/TCP; Services with one " +
				"address need different ports)"}},
		"shared by one": {lab, []*v1.Service{service("a", 2), service("b", 1, key, port(81))}, nil, nil,
			[]string{"192.0.2.10", "192.0.2.11"}},
		"shared, with endpoints elsewhere": {lab, []*v1.Service{service("a", 2, key, localPolicy), service("b", 1, key, port(81))}, nil,
			nil,
			[]string{"192.0.2.10", "192.0.2.11"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := planPools(poolInput{Services: c.services, Pools: pools(t, c.pools...), Given: c.given, Nodes: c.nodes})
			for i, s := range c.services {
				if text := sayPool(got[s.UID]); text != c.want[i] {
					t.Errorf("%s: %s, want %s", s.Name, text, c.want[i])
				}
			}
		})
	}
}

func sayPool(r poolResult) string {
	var out []string
	for _, a := range r.Addresses {
		out = append(out, a.String())
	}
	if r.Problem != "" {
		out = append(out, "("+r.Problem+")")
	}
	return strings.Join(out, " ")
}

// TestParsePools: what the flag takes, and what it says to the rest.
func TestParsePools(t *testing.T) {
	for value, want := range map[string]string{
		"a=192.0.2.0/28":                   "a (192.0.2.0-192.0.2.15) 15",
		"a=192.0.2.0/24":                   "a (192.0.2.0-192.0.2.255) 254",
		"a=10.0.0.0/8":                     "a (10.0.0.0-10.255.255.255) 16646144",
		"a=192.0.2.7":                      "a (192.0.2.7) 1",
		"a=192.0.2.0-192.0.2.15":           "a (192.0.2.0-192.0.2.15) 16",
		"a=192.0.2.8/31,198.51.100.255":    "a (192.0.2.8-192.0.2.9, 198.51.100.255) 3",
		"a=192.0.2.1, 192.0.2.3":           "a (192.0.2.1, 192.0.2.3) 2",
		"a=2001:db8::/120":                 "a (2001:db8::-2001:db8::ff) 255",
		"a=2001:db8::/48":                  "a (2001:db8::-2001:db8:0:ffff:ffff:ffff:ffff:ffff) 9223372036854775807",
		"192.0.2.0/28":                     "no list of addresses",
		"a=":                               "no list of addresses",
		"a=autoAssign=false":               "no list of addresses",
		"a=192.0.2.1,autoAssign=no":        "allowed are true and false",
		"A b=192.0.2.1":                    "the name \"A b\"",
		"a=192.0.2.9-192.0.2.1":            "the smaller one first",
		"a=192.0.2.9-2001:db8::1":          "two addresses of one family",
		"a=lab":                            "neither a CIDR",
		"a=127.0.0.1":                      "no address that clients elsewhere can reach",
		"a=fe80::1":                        "no address that clients elsewhere can reach",
		"a=224.0.0.0/24":                   "no address that clients elsewhere can reach",
		"a=192.0.2.0/28,192.0.2.3":         "overlaps 192.0.2.0-192.0.2.15 of the same pool",
		"b=192.0.2.1 a=192.0.2.0/28":       "overlaps 192.0.2.1 of pool b",
		"a=192.0.2.1 a=192.0.2.2":          "the name a is given twice",
		"a=192.0.2.1-192.0.2.9-192.0.2.10": "two addresses of one family",
	} {
		var values []string
		if v := strings.ReplaceAll(value, ", ", ",\x00"); strings.Contains(v, " a=") {
			values = strings.Split(value, " ")
		} else {
			values = []string{value}
		}
		got, err := ParsePools(values)
		text := fmt.Sprint(err)
		if err == nil {
			var n int64
			for _, f := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
				n += got[0].size(f)
			}
			text = fmt.Sprint(got[0], " ", n)
		}
		if !strings.Contains(text, want) || err == nil && text != want {
			t.Errorf("%s: %s, want %s", value, text, want)
		}
	}
}

// TestPoolsOfOthers: a pool may not hold addresses of pods, Services and nodes.
func TestPoolsOfOthers(t *testing.T) {
	pods := Foreign{netip.MustParsePrefix("10.244.0.0/16"), "--cluster-cidr 10.244.0.0/16"}
	if err := CheckPools(pools(t, "a=10.243.255.250-10.243.255.255,2001:db8::/64"), pods); err != nil {
		t.Errorf("a neighbour of the pods' range: %v", err)
	}
	for _, v := range []string{"a=10.244.3.0/24", "a=10.0.0.0/8", "a=10.243.0.0-10.244.0.0"} {
		err := CheckPools(pools(t, v), pods)
		if err == nil || !strings.Contains(err.Error(), "--load-balancer-pool a: ") || !strings.Contains(err.Error(), pods.Holder) {
			t.Errorf("%s: %v", v, err)
		}
	}
}

// TestPoolsProperties: over random histories of Services that come, go and
// change, an address given stays, nobody has what he may not have, and at no
// point between two writes do two Services have one address unless both agreed.
func TestPoolsProperties(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 2))
	for range 60 {
		config := pools(t, "one=192.0.2.0/29,2001:db8::1-2001:db8::3", "two=198.51.100.1-198.51.100.4,autoAssign=false")
		status := map[types.UID][]netip.Addr{}
		live := map[types.UID]*v1.Service{}
		for step := range 60 {
			uid := types.UID(fmt.Sprint("s", r.IntN(14)))
			switch s := live[uid]; {
			case s == nil:
				s = service(string(uid), r.IntN(900))
				if r.IntN(3) == 0 {
					families(v1.IPFamilyPolicyPreferDualStack, v1.IPv4Protocol, v1.IPv6Protocol)(s)
				}
				if r.IntN(3) == 0 {
					note(shareKey, fmt.Sprint("k", r.IntN(2)))(s)
					port(int32(80 + r.IntN(3)))(s)
				}
				live[uid] = s
			case r.IntN(2) == 0:
				delete(live, uid)
				delete(status, uid)
			default:
				note(addressesKey, fmt.Sprintf("192.0.2.%d", r.IntN(10)))(s)
			}
			for round := 0; ; round++ {
				in := poolInput{Pools: config, Given: map[types.UID][]netip.Addr{}}
				for uid, s := range live {
					in.Services = append(in.Services, s)
					if status[uid] != nil {
						in.Given[uid] = slices.Clone(status[uid])
					}
				}
				out := planPools(in)
				changed := false
				uids := slices.Collect(func(yield func(types.UID) bool) {
					for uid := range out {
						if !yield(uid) {
							return
						}
					}
				})
				r.Shuffle(len(uids), func(i, j int) { uids[i], uids[j] = uids[j], uids[i] })
				for _, uid := range uids {
					for _, a := range status[uid] {
						if s := live[uid]; s.Annotations[addressesKey] == "" && !slices.Contains(out[uid].Addresses, a) {
							t.Fatalf("seed %d, step %d: %s lost %s: %s", seed, step, uid, a, sayPool(out[uid]))
						}
					}
					changed = changed || !slices.Equal(status[uid], out[uid].Addresses)
					status[uid] = out[uid].Addresses
					checkHolders(t, seed, live, status)
				}
				if !changed {
					break
				}
				if round > 4 {
					t.Fatalf("seed %d, step %d: no rest after %d rounds", seed, step, round)
				}
			}
		}
	}
}

func checkHolders(t *testing.T, seed uint64, live map[types.UID]*v1.Service, status map[types.UID][]netip.Addr) {
	t.Helper()
	holders := map[netip.Addr][]*v1.Service{}
	for uid, addrs := range status {
		for _, a := range addrs {
			for _, other := range holders[a] {
				if why := cannotShare(live[uid], other); why != "" {
					t.Fatalf("seed %d: %s is of %s and %s: %s", seed, a, uid, other.UID, why)
				}
			}
			holders[a] = append(holders[a], live[uid])
		}
	}
}
