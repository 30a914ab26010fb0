package validate

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// Origins of errors in what an earlier server let in: odd addresses, and
// whatever else breaks a rule that came later.
const (
	ipOrigin    = "format=ip-sloppy"
	cidrOrigin  = "format=cidr-sloppy"
	laterOrigin = "berth=later"
)

// tolerable says whether a stored object may go on breaking the rule.
func tolerable(e *field.Error) bool {
	return e.Origin == ipOrigin || e.Origin == cidrOrigin || e.Origin == laterOrigin
}

// legacyIP wants an IP address without leading zeros and not IPv4 inside IPv6
// (KEP-4858: others read such an address as another one). A field that holds
// one from before may keep it; see Ratcheted.
func legacyIP(p *field.Path, ip string) errs {
	return validation.IsValidIPForLegacyField(p, ip, true, nil).WithOrigin(ipOrigin)
}

// legacyCIDR wants the same of a CIDR, and no bits of a host in it.
func legacyCIDR(p *field.Path, cidr string) errs {
	return validation.IsValidCIDRForLegacyField(p, cidr, true, nil).WithOrigin(cidrOrigin)
}

// Ratcheted is what check finds wrong with changed, without the tolerable
// faults that the stored object has already: an object from before a rule can
// still be changed elsewhere. A fault is known by its value, which may have
// moved.
func Ratcheted[T any](check func(changed, old T) errs, changed, old T) errs {
	all := check(changed, old)
	known := map[string]bool{}
	for _, e := range all {
		if !tolerable(e) {
			continue
		}
		for _, before := range check(old, old) {
			if tolerable(before) {
				known[fmt.Sprint(before.BadValue)] = true
			}
		}
		break
	}
	if len(known) == 0 {
		return all
	}
	var rest errs
	for _, e := range all {
		if !tolerable(e) || !known[fmt.Sprint(e.BadValue)] {
			rest = append(rest, e)
		}
	}
	return rest
}

// address reads an address in any form that was ever accepted, as the strictest
// and the most forgiving reader do: 127.0.0.01 is a loopback address to some.
func address(text string) (netip.Addr, bool) {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return ip.Unmap(), ok
}

// routable refuses addresses that never leave a host or a link.
func routable(p *field.Path, text string) errs {
	ip, ok := address(text)
	switch {
	case !ok:
		return nil // legacyIP has judged it
	case ip.IsUnspecified():
		return errs{field.Invalid(p, text, fmt.Sprintf("may not be unspecified (%v)", text))}
	case ip.IsLoopback():
		return errs{field.Invalid(p, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)")}
	case ip.IsLinkLocalUnicast():
		return errs{field.Invalid(p, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")}
	case ip.IsLinkLocalMulticast():
		return errs{field.Invalid(p, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")}
	}
	return nil
}
