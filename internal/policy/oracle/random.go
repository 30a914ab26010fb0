package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/policy/model"
)

// Protocols are those a policy can name, with their numbers.
var Protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

var (
	someNamespaces = []string{"x", "y", "z"}
	someLabels     = []string{"a", "b", "c"}
	someNames      = []string{"web", "dns"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// randomLabels are few, so that selectors often match.
func randomLabels(r *rand.Rand) map[string]string {
	return map[string]string{"pod": pick(r, someLabels), "tier": pick(r, someLabels)}
}

// randomPod is a pod with one of few keys and addresses.
func randomPod(r *rand.Rand) model.Pod {
	p := model.Pod{
		Key: model.Key{Namespace: pick(r, someNamespaces), Name: pick(r, someLabels)}, Labels: randomLabels(r),
		Local: r.IntN(3) > 0, Leaving: r.IntN(4) == 0, Created: r.Int64N(3),
		IPs: []netip.Addr{randomAddr(r)},
	}
	if r.IntN(2) == 0 {
		p.IPs = append(p.IPs, randomAddr6(r))
	}
	for _, name := range someNames {
		if r.IntN(2) == 0 {
			p.Ports = append(p.Ports, model.PodPort{Name: model.Name{Name: name, Proto: Protocols[randomProtocol(r)]},
				Value: uint16(80 + r.IntN(3))})
		}
	}
	return p
}

// randomAddr is one that a pod may have.
func randomAddr(r *rand.Rand) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(2 + r.IntN(8))})
}

func randomAddr6(r *rand.Rand) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+r.IntN(8)))
}

// RandomPacket is between addresses that pods may have, or others.
func RandomPacket(r *rand.Rand) Packet {
	p := Packet{Src: randomAddr(r), Dst: randomAddr(r), Proto: Protocols[randomProtocol(r)], Port: uint16(79 + r.IntN(6))}
	if r.IntN(3) == 0 {
		p.Src, p.Dst = randomAddr6(r), randomAddr6(r)
	}
	if r.IntN(8) == 0 {
		p.Proto = 1 // ICMP
	}
	return p
}

func randomProtocol(r *rand.Rand) corev1.Protocol {
	return pick(r, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})
}

func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	switch r.IntN(5) {
	case 0, 1:
		s.MatchLabels = map[string]string{"pod": pick(r, someLabels)}
	case 2:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn,
			Values: []string{"a", "b"}}}
	case 3:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pod", Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{pick(r, someLabels)}},
			{Key: "tier", Operator: metav1.LabelSelectorOpExists}}
	}
	return s
}

// randomPolicy is a policy with one of few keys and anything the API allows.
func randomPolicy(r *rand.Rand) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(r, someNamespaces), Name: pick(r, someLabels)}}
	np.Spec.PodSelector = *randomSelector(r)
	switch r.IntN(4) {
	case 0:
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	case 1:
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	for range r.IntN(3) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: randomPeers(r), Ports: randomPorts(r)})
	}
	for range r.IntN(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: randomPeers(r), Ports: randomPorts(r)})
	}
	return np
}

func randomPeers(r *rand.Rand) (out []networkingv1.NetworkPolicyPeer) {
	for range r.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch r.IntN(5) {
		case 0:
			p.PodSelector = randomSelector(r)
		case 1:
			p.NamespaceSelector = randomSelector(r)
		case 2:
			p.NamespaceSelector, p.PodSelector = randomSelector(r), randomSelector(r)
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: pick(r, []string{"10.0.0.0/23", "10.0.0.0/29", "10.0.1.4/30", "0.0.0.0/0"})}
			for range r.IntN(3) {
				p.IPBlock.Except = append(p.IPBlock.Except, pick(r, []string{"10.0.0.0/30", "10.0.0.2/31", "10.0.1.7/32"}))
			}
		case 4:
			p.IPBlock = &networkingv1.IPBlock{CIDR: pick(r, []string{"fd00::/64", "::/0", "fd00::8/126"})}
		}
		out = append(out, p)
	}
	return out
}

func randomPorts(r *rand.Rand) (out []networkingv1.NetworkPolicyPort) {
	for range r.IntN(4) {
		var p networkingv1.NetworkPolicyPort
		if r.IntN(4) > 0 {
			proto := randomProtocol(r)
			p.Protocol = &proto
		}
		switch r.IntN(4) {
		case 0:
			v := intstr.FromString(pick(r, someNames))
			p.Port = &v
		case 1:
			v, end := intstr.FromInt32(80), int32(80+r.IntN(4))
			p.Port, p.EndPort = &v, &end
		case 2:
			v := intstr.FromInt32(int32(80 + r.IntN(4)))
			p.Port = &v
		}
		out = append(out, p)
	}
	return out
}
