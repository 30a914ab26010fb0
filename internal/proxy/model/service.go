package model

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/utils/net"
)

// Labels that take a Service or a slice out of the proxy's hands.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = corev1.IsHeadlessService
)

// protoNum is the IP protocol number; 0 for a protocol the proxy cannot do.
func protoNum(p corev1.Protocol) byte {
	switch p {
	case corev1.ProtocolTCP, "":
		return 6
	case corev1.ProtocolUDP:
		return 17
	case corev1.ProtocolSCTP:
		return 132
	}
	return 0
}

// served says whether the proxy does anything for s at all.
func served(s *corev1.Service) bool {
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	_, other := s.Labels[labelProxyName]
	return !other
}

// clusterIP returns the cluster IP of s in family f.
func clusterIP(s *corev1.Service, f Family) (netip.Addr, bool) {
	ip := ""
	if len(s.Spec.IPFamilies) == 0 {
		ip = s.Spec.ClusterIP
	}
	for i, fam := range s.Spec.IPFamilies {
		if string(fam) != f.String() {
			continue
		}
		if i < len(s.Spec.ClusterIPs) {
			ip = s.Spec.ClusterIPs[i]
		} else if i == 0 {
			ip = s.Spec.ClusterIP
		}
	}
	a, err := netip.ParseAddr(ip)
	if err != nil || !f.Has(a) {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// loadBalancerIPs returns the addresses the data plane answers for a load
// balancer: those with an IP whose mode is VIP, which is the default.
func loadBalancerIPs(s *corev1.Service, f Family) []netip.Addr {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var out []netip.Addr
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy {
			continue
		}
		if a, err := netip.ParseAddr(in.IP); err == nil && f.Has(a) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func externalIPs(s *corev1.Service, f Family) []netip.Addr {
	var out []netip.Addr
	for _, ip := range s.Spec.ExternalIPs {
		if a, err := netip.ParseAddr(ip); err == nil && f.Has(a) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// sourceRanges returns the disjoint ranges that may reach the load balancer
// addresses, and whether there is a limit at all: a range of every address
// takes the limit away. A Service whose ranges are all of the other family
// lets no one in through this one: an owner who limits sources does not mean to
// leave half of the Internet out of it.
func sourceRanges(s *corev1.Service, f Family) ([]netip.Prefix, bool) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil, false
	}
	var out []netip.Prefix
	other, otherAll := false, false
	for _, r := range s.Spec.LoadBalancerSourceRanges {
		// ParseCIDRSloppy takes what the API server has let in for years.
		_, n, err := utilnet.ParseCIDRSloppy(strings.TrimSpace(r))
		if err != nil {
			continue
		}
		ones, _ := n.Mask.Size()
		a, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		if !f.Has(a) {
			other, otherAll = true, otherAll || ones == 0
			continue
		}
		if ones == 0 {
			return nil, false
		}
		out = append(out, netip.PrefixFrom(a.Unmap(), ones).Masked())
	}
	return disjoint(out), len(out) > 0 || other && !otherAll
}

// disjoint drops the prefixes that lie within another one: the kernel
// refuses intervals that overlap.
func disjoint(ps []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ps, func(a, b netip.Prefix) int {
		if c := a.Bits() - b.Bits(); c != 0 {
			return c
		}
		return a.Addr().Compare(b.Addr())
	})
	var out []netip.Prefix
	for _, p := range ps {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p)
		}
	}
	return out
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func affinity(s *corev1.Service) int32 {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil &&
		*c.ClientIP.TimeoutSeconds > 0 {
		return *c.ClientIP.TimeoutSeconds
	}
	return corev1.DefaultClientIPServiceAffinitySeconds
}

// frontend is one way into a service port.
type frontend struct {
	key   vipKey
	class Class
	// external: the key's address is not the cluster IP.
	external bool
}

// frontends lists the ways into port sp of s, given its endpoints and for how
// long, in seconds, clients return to theirs. When one
// address is both external IP and load balancer address the stricter load
// balancer entry wins; the cluster IP wins over both.
func frontends(s *corev1.Service, sp *corev1.ServicePort, cfg Config, p *port, timeout int32) []frontend {
	f := cfg.Family
	cip, ok := clusterIP(s, f)
	if !ok {
		return nil
	}
	proto := protoNum(sp.Protocol)
	internalLocal := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	externalLocal := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	_, limited := sourceRanges(s, f)

	class := func(external, nodePort, ranges bool) Class {
		c := Class{NodePort: nodePort, External: external, Ranges: ranges, LocalPolicy: internalLocal && !external || externalLocal &&
			external, Timeout: int(timeout)}
		if c.LocalPolicy {
			c.Local = bucket(len(p.pools[LocalPool].at))
		}
		if !c.LocalPolicy || external {
			c.Cluster = bucket(len(p.pools[ClusterPool].at))
		}
		switch {
		case !p.counts.any():
			return Class{Kind: Reject, NodePort: nodePort, Ranges: ranges}
		case c.Cluster == 0 && c.Local == 0:
			return Class{Kind: Drop, NodePort: nodePort, Ranges: ranges}
		}
		return c
	}
	out := []frontend{{vipKey{cip, proto, uint16(sp.Port)}, class(false, false, false), false}}
	seen := map[netip.Addr]bool{cip: true}
	external := externalIPs(s, f)
	if cfg.IgnoreExternalIPs {
		external = nil
	}
	for i, ips := range [][]netip.Addr{loadBalancerIPs(s, f), external} {
		for _, a := range ips {
			if !seen[a] {
				seen[a] = true
				out = append(out, frontend{vipKey{a, proto, uint16(sp.Port)}, class(true, false, limited && i == 0), true})
			}
		}
	}
	if sp.NodePort > 0 && (s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer) {
		out = append(out, frontend{vipKey{netip.Addr{}, proto, uint16(sp.NodePort)}, class(true, true, false), true})
	}
	return out
}
