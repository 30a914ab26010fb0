// Package oracle reads NetworkPolicy slowly and obviously: it asks every
// policy about every packet. Tests compare the real thing with it.
package oracle

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/policy/model"
)

// Cluster is a cluster as one node sees it.
type Cluster struct {
	Namespaces map[string]map[string]string
	Pods       map[model.Key]model.Pod
	Policies   map[model.Key]*networkingv1.NetworkPolicy
}

// Packet is the first of a connection.
type Packet struct {
	Src, Dst netip.Addr
	Proto    uint8
	Port     uint16
}

// Allows says whether this node lets a packet pass.
func (w Cluster) Allows(p Packet) bool {
	if p.Src == p.Dst {
		return true
	}
	src, dst := w.owner(p.Src), w.owner(p.Dst)
	return w.passes(networkingv1.PolicyTypeEgress, src, dst, p.Dst, dst, p) && w.passes(networkingv1.PolicyTypeIngress, dst, src, p.Src,
		dst, p)
}

func (w Cluster) owner(ip netip.Addr) *model.Pod {
	var best *model.Pod
	for _, p := range w.Pods {
		if !slices.Contains(p.IPs, ip) {
			continue
		}
		better := best == nil
		if best != nil {
			switch {
			case best.Leaving != p.Leaving:
				better = best.Leaving
			case best.Created != p.Created:
				better = best.Created < p.Created
			default:
				better = best.Key.String() < p.Key.String()
			}
		}
		if better {
			best = &p
		}
	}
	return best
}

// passes asks the policies of one side of a packet; other is who is on the
// other side, if a pod is.
func (w Cluster) passes(side networkingv1.PolicyType, guarded, other *model.Pod, otherIP netip.Addr, target *model.Pod, p Packet) bool {
	if guarded == nil || !guarded.Local {
		return true
	}
	isolated := false
	for _, np := range w.Policies {
		if np.Namespace != guarded.Namespace || !selects(&np.Spec.PodSelector, guarded.Labels) || !covers(np, side) {
			continue
		}
		isolated = true
		if side == networkingv1.PolicyTypeIngress {
			for _, r := range np.Spec.Ingress {
				if w.peers(np.Namespace, r.From, other, otherIP) && ports(r.Ports, target, p) {
					return true
				}
			}
			continue
		}
		for _, r := range np.Spec.Egress {
			if w.peers(np.Namespace, r.To, other, otherIP) && ports(r.Ports, target, p) {
				return true
			}
		}
	}
	return !isolated
}

func covers(np *networkingv1.NetworkPolicy, side networkingv1.PolicyType) bool {
	if len(np.Spec.PolicyTypes) > 0 {
		return slices.Contains(np.Spec.PolicyTypes, side)
	}
	return side == networkingv1.PolicyTypeIngress || len(np.Spec.Egress) > 0
}

func selects(s *metav1.LabelSelector, l map[string]string) bool {
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(labels.Set(l))
}

func (w Cluster) peers(namespace string, peers []networkingv1.NetworkPolicyPeer, pod *model.Pod, ip netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	return slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		switch {
		case p.IPBlock != nil:
			return netip.MustParsePrefix(p.IPBlock.CIDR).Contains(ip) && !slices.ContainsFunc(p.IPBlock.Except, func(e string) bool {
				return netip.MustParsePrefix(e).Contains(ip)
			})
		case pod == nil || p.PodSelector == nil && p.NamespaceSelector == nil:
			return false
		case p.NamespaceSelector == nil && pod.Namespace != namespace:
			return false
		}
		if p.NamespaceSelector != nil {
			l, known := w.Namespaces[pod.Namespace]
			if !known || !selects(p.NamespaceSelector, l) {
				return false
			}
		}
		return p.PodSelector == nil || selects(p.PodSelector, pod.Labels)
	})
}

func ports(allowed []networkingv1.NetworkPolicyPort, target *model.Pod, p Packet) bool {
	if len(allowed) == 0 {
		return true
	}
	return slices.ContainsFunc(allowed, func(a networkingv1.NetworkPolicyPort) bool {
		proto := uint8(6)
		if a.Protocol != nil {
			proto, _ = model.ProtoNumber(*a.Protocol)
		}
		switch {
		case proto != p.Proto:
			return false
		case a.Port == nil:
			return true
		case a.Port.Type == intstr.String:
			return target != nil && slices.Contains(target.Ports, model.PodPort{Name: model.Name{Name: a.Port.StrVal, Proto: proto},
				Value: p.Port})
		case a.EndPort != nil:
			return int32(p.Port) >= a.Port.IntVal && int32(p.Port) <= *a.EndPort
		}
		return int32(p.Port) == a.Port.IntVal
	})
}
