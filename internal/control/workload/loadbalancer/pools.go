package loadbalancer

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Pool is a set of addresses for Services, under a name.
type Pool struct {
	Name   string
	ranges []addressRange
	// manual pools are for Services that name the pool or the address.
	manual bool
}

// addressRange is two addresses of one family and all between them. cidr is set
// where the user wrote one: some of its addresses are no address of a host.
type addressRange struct {
	first, last netip.Addr
	cidr        bool
}

// autoAssign is the word of a pool's list that makes it manual.
const autoAssign = "autoAssign="

// ParsePools reads --load-balancer-pool: NAME=CIDR|FIRST-LAST[,...], with
// autoAssign=false in the list for a pool that Services must ask for.
func ParsePools(values []string) ([]Pool, error) {
	var out []Pool
	for _, v := range values {
		p, err := parsePool(v)
		if err != nil {
			return nil, fmt.Errorf("--load-balancer-pool %q: %w", v, err)
		}
		for _, other := range out {
			if other.Name == p.Name {
				return nil, fmt.Errorf("--load-balancer-pool %q: the name %s is given twice; put all its ranges into one list", v, p.Name)
			}
			if a, b, both := overlap(p.ranges, other.ranges); both {
				return nil, fmt.Errorf("--load-balancer-pool %q: %s overlaps %s of pool %s; an address may be in one pool only", v, a, b,
					other.Name)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

func parsePool(v string) (Pool, error) {
	name, list, ok := strings.Cut(v, "=")
	if !ok || list == "" {
		return Pool{}, fmt.Errorf("no list of addresses; write NAME=CIDR or NAME=FIRST-LAST, such as lab=192.0.2.10-192.0.2.50," +
			"2001:db8::/120")
	}
	if bad := validation.IsDNS1123Label(name); len(bad) > 0 {
		return Pool{}, fmt.Errorf("the name %q: %s", name, bad[0])
	}
	p := Pool{Name: name}
	for _, item := range strings.Split(list, ",") {
		item = strings.TrimSpace(item)
		if word, is := strings.CutPrefix(item, autoAssign); is {
			if word != "true" && word != "false" {
				return Pool{}, fmt.Errorf("%s%s: allowed are true and false", autoAssign, word)
			}
			p.manual = word == "false"
			continue
		}
		r, err := parseRange(item)
		if err != nil {
			return Pool{}, err
		}
		if a, b, both := overlap([]addressRange{r}, p.ranges); both {
			return Pool{}, fmt.Errorf("%s overlaps %s of the same pool", a, b)
		}
		p.ranges = append(p.ranges, r)
	}
	if len(p.ranges) == 0 {
		return Pool{}, fmt.Errorf("no list of addresses; write CIDRs and FIRST-LAST ranges with commas between")
	}
	return p, nil
}

func parseRange(item string) (addressRange, error) {
	var r addressRange
	if from, to, isRange := strings.Cut(item, "-"); isRange {
		first, err1 := netip.ParseAddr(strings.TrimSpace(from))
		last, err2 := netip.ParseAddr(strings.TrimSpace(to))
		first, last = first.Unmap(), last.Unmap()
		if err1 != nil || err2 != nil || first.Is4() != last.Is4() || last.Less(first) {
			return r, fmt.Errorf("%q is not two addresses of one family, the smaller one first, such as 192.0.2.10-192.0.2.50", item)
		}
		r = addressRange{first: first, last: last}
	} else if a, err := netip.ParseAddr(item); err == nil {
		r = addressRange{first: a.Unmap(), last: a.Unmap()}
	} else {
		p, err := netip.ParsePrefix(item)
		if err != nil {
			return r, fmt.Errorf("%q is neither a CIDR, such as 192.0.2.0/28, nor a range, such as 192.0.2.10-192.0.2.50", item)
		}
		r = addressRange{first: p.Masked().Addr(), last: lastOf(p), cidr: p.Bits() < p.Addr().BitLen()-1}
	}
	for _, a := range []netip.Addr{r.first, r.last} {
		if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Zone() != "" {
			return r, fmt.Errorf("%s: %s is no address that clients elsewhere can reach", item, a)
		}
	}
	return r, nil
}

// lastOf is the greatest address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (r addressRange) has(a netip.Addr) bool {
	return a.Is4() == r.first.Is4() && !a.Less(r.first) && !r.last.Less(a)
}

func (r addressRange) String() string {
	if r.first == r.last {
		return r.first.String()
	}
	return r.first.String() + "-" + r.last.String()
}

func overlap(a, b []addressRange) (x, y addressRange, both bool) {
	for _, x := range a {
		for _, y := range b {
			if x.has(y.first) || y.has(x.first) {
				return x, y, true
			}
		}
	}
	return x, y, false
}

// usable says whether an address of the range may be given unasked. From a CIDR
// the addresses that are a network's own or its broadcast stay out: .0 and .255,
// which some devices still refuse in any network, and the router anycast
// address of IPv6 (RFC 4291, 2.6.1).
func (r addressRange) usable(a netip.Addr) bool {
	if !r.cidr {
		return true
	}
	if a.Is4() {
		last := a.As4()[3]
		return last != 0 && last != 255
	}
	return a != r.first
}

// size is how many addresses of a family a pool may give unasked, at most
// math.MaxInt64.
func (p Pool) size(f v1.IPFamily) int64 {
	var n int64
	for _, r := range p.ranges {
		if family(r.first) != f {
			continue
		}
		a, b := r.first.As16(), r.last.As16()
		var d uint64
		for i := range 16 {
			if d > math.MaxInt64>>9 {
				return math.MaxInt64
			}
			d = d<<8 + uint64(b[i]) - uint64(a[i])
		}
		count := int64(d) + 1
		if r.cidr && f == v1.IPv6Protocol {
			count--
		}
		if r.cidr && f == v1.IPv4Protocol {
			count -= edges(r)
		}
		if n > math.MaxInt64-count {
			return math.MaxInt64
		}
		n += count
	}
	return n
}

// edges counts the .0 and .255 of a range of IPv4 addresses, which is a CIDR's.
func edges(r addressRange) (n int64) {
	first, last := r.first.As4(), r.last.As4()
	blocks := int64(last[0])<<16 + int64(last[1])<<8 + int64(last[2]) - int64(first[0])<<16 - int64(first[1])<<8 - int64(first[2]) + 1
	if first[3] == 0 {
		n += blocks
	}
	if last[3] == 255 {
		n += blocks
	}
	return n
}

func (p Pool) has(a netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.has(a) })
}

func (p Pool) hasFamily(f v1.IPFamily) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return family(r.first) == f })
}

// String is the form of events: lab (192.0.2.10-192.0.2.50).
func (p Pool) String() string {
	var out []string
	for _, r := range p.ranges {
		out = append(out, r.String())
	}
	return fmt.Sprintf("%s (%s)", p.Name, strings.Join(out, ", "))
}

func poolNames(pools []Pool) string {
	var out []string
	for _, p := range pools {
		out = append(out, p.String())
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

// Foreign is a range of addresses that belongs to something else than a pool.
type Foreign struct {
	Prefix netip.Prefix
	// Holder names it, as in "--cluster-cidr 10.244.0.0/16".
	Holder string
}

// CheckPools refuses pools that hold addresses of others.
func CheckPools(pools []Pool, others ...Foreign) error {
	for _, p := range pools {
		for _, o := range others {
			other := addressRange{first: o.Prefix.Masked().Addr(), last: lastOf(o.Prefix)}
			if r, _, both := overlap(p.ranges, []addressRange{other}); both {
				return fmt.Errorf("--load-balancer-pool %s: %s overlaps %s; choose addresses that nothing else has", p.Name, r, o.Holder)
			}
		}
	}
	return nil
}
