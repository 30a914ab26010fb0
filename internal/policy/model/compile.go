package model

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// peer selects pods: of one namespace, or of those whose labels match.
type peer struct {
	namespace  string
	namespaces labels.Selector // nil: only namespace
	pods       labels.Selector
}

func (p peer) String() string {
	if p.namespaces == nil {
		return "namespace " + p.namespace + ": pods " + p.pods.String()
	}
	return "namespaces {" + p.namespaces.String() + "}: pods " + p.pods.String()
}

// rule is one entry of a policy's ingress or egress. A packet passes if its
// other side is one of peers or blocks (or anyPeer is set), and its protocol
// and port are among ports or names (or anyPort is set).
type rule struct {
	anyPeer, anyPort bool
	peers            []peer
	blocks           []addrRange
	ports            []portRange
	names            []Name
}

// compiled is a NetworkPolicy with its selectors parsed.
type compiled struct {
	selector labels.Selector
	applies  [2]bool
	rules    [2][]rule
}

// compile parses a policy. A part that cannot be understood allows nothing
// and is told of in the error; the rest still holds.
func compile(np *networkingv1.NetworkPolicy) (compiled, error) {
	var c compiled
	var errs []error
	sel := func(what string, s *metav1.LabelSelector) labels.Selector {
		out, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s of NetworkPolicy %s/%s: %w", what, np.Namespace, np.Name, err))
			return labels.Nothing()
		}
		return out
	}
	c.selector = sel("spec.podSelector", &np.Spec.PodSelector)
	types := np.Spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(np.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	c.applies[Ingress] = slices.Contains(types, networkingv1.PolicyTypeIngress)
	c.applies[Egress] = slices.Contains(types, networkingv1.PolicyTypeEgress)
	add := func(d Direction, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		r := rule{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
		for _, p := range peers {
			if p.IPBlock != nil {
				ranges, err := blockRanges(p.IPBlock)
				if err != nil {
					errs = append(errs, fmt.Errorf("an ipBlock of NetworkPolicy %s/%s: %w", np.Namespace, np.Name, err))
				}
				r.blocks = append(r.blocks, ranges...)
				continue
			}
			if p.PodSelector == nil && p.NamespaceSelector == nil {
				continue
			}
			pods := labels.Everything()
			if p.PodSelector != nil {
				pods = sel("a podSelector", p.PodSelector)
			}
			one := peer{namespace: np.Namespace, pods: pods}
			if p.NamespaceSelector != nil {
				one = peer{namespaces: sel("a namespaceSelector", p.NamespaceSelector), pods: pods}
			}
			r.peers = append(r.peers, one)
		}
		r.blocks = mergeAddrs(r.blocks)
		for _, p := range ports {
			if err := r.addPort(p); err != nil {
				errs = append(errs, fmt.Errorf("a port of NetworkPolicy %s/%s: %w", np.Namespace, np.Name, err))
			}
		}
		r.ports = mergePorts(r.ports)
		slices.SortFunc(r.peers, func(a, b peer) int { return strings.Compare(a.String(), b.String()) })
		r.peers = slices.CompactFunc(r.peers, func(a, b peer) bool { return a.String() == b.String() })
		slices.SortFunc(r.names, compareNames)
		r.names = slices.Compact(r.names)
		c.rules[d] = append(c.rules[d], r)
	}
	for _, in := range np.Spec.Ingress {
		add(Ingress, in.From, in.Ports)
	}
	for _, eg := range np.Spec.Egress {
		add(Egress, eg.To, eg.Ports)
	}
	return c, errors.Join(errs...)
}

func (r *rule) addPort(p networkingv1.NetworkPolicyPort) error {
	proto := corev1.ProtocolTCP
	if p.Protocol != nil {
		proto = *p.Protocol
	}
	n, err := ProtoNumber(proto)
	switch {
	case err != nil:
		return err
	case p.Port == nil:
		r.ports = append(r.ports, portRange{n, 0, 65535})
	case p.Port.Type == intstr.String:
		r.names = append(r.names, Name{p.Port.StrVal, n})
	default:
		first, last := p.Port.IntVal, p.Port.IntVal
		if p.EndPort != nil {
			last = *p.EndPort
		}
		if first < 0 || last > 65535 || last < first {
			return fmt.Errorf("%d-%d is not a range within 0-65535", first, last)
		}
		r.ports = append(r.ports, portRange{n, uint16(first), uint16(last)})
	}
	return nil
}

// ProtoNumber is the IP protocol number of TCP, UDP or SCTP.
func ProtoNumber(p corev1.Protocol) (uint8, error) {
	switch p {
	case corev1.ProtocolTCP, "":
		return 6, nil
	case corev1.ProtocolUDP:
		return 17, nil
	case corev1.ProtocolSCTP:
		return 132, nil
	}
	return 0, fmt.Errorf("protocol %q: allowed are TCP, UDP and SCTP", p)
}

func compareNames(a, b Name) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return int(a.Proto) - int(b.Proto)
}

// portRange is a protocol and its ports from First to Last, both included.
type portRange struct {
	Proto       uint8
	First, Last uint16
}

// mergePorts sorts ranges and joins those that touch: each is a rule.
func mergePorts(in []portRange) []portRange {
	slices.SortFunc(in, func(a, b portRange) int {
		if a.Proto != b.Proto {
			return int(a.Proto) - int(b.Proto)
		}
		return int(a.First) - int(b.First)
	})
	var out []portRange
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].Proto == r.Proto && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// addrRange is the addresses from First to Last, both included, of one
// family.
type addrRange struct{ First, Last netip.Addr }

func rangeOf(p netip.Prefix) addrRange {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return addrRange{p.Masked().Addr(), last}
}

// blockRanges is an ipBlock without its exceptions. With an exception that
// cannot be understood the whole block allows nothing.
func blockRanges(b *networkingv1.IPBlock) ([]addrRange, error) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("cidr %q: %w", b.CIDR, err)
	}
	rest := []addrRange{rangeOf(cidr)}
	for _, s := range b.Except {
		except, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("except %q: %w", s, err)
		}
		if except.Addr().Is4() != cidr.Addr().Is4() {
			continue
		}
		hole := rangeOf(except)
		var left []addrRange
		for _, r := range rest {
			if hole.Last.Less(r.First) || r.Last.Less(hole.First) {
				left = append(left, r)
				continue
			}
			if r.First.Less(hole.First) {
				left = append(left, addrRange{r.First, hole.First.Prev()})
			}
			if hole.Last.Less(r.Last) {
				left = append(left, addrRange{hole.Last.Next(), r.Last})
			}
		}
		rest = left
	}
	return rest, nil
}

// mergeAddrs sorts ranges and joins those that touch: the kernel's sets do
// not take overlaps.
func mergeAddrs(in []addrRange) []addrRange {
	slices.SortFunc(in, func(a, b addrRange) int { return a.First.Compare(b.First) })
	var out []addrRange
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].First.BitLen() == r.First.BitLen() {
			// Next of the very last address is not valid, and less than all.
			if next := out[n-1].Last.Next(); !next.IsValid() || !next.Less(r.First) {
				if out[n-1].Last.Less(r.Last) {
					out[n-1].Last = r.Last
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}
