package kernel

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/policy/oracle"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// cluster is three pods in each of three namespaces, with labels that name
// them, and named ports.
func cluster(n *node) (all []oracle.Packet) {
	var ips []netip.Addr
	for i, ns := range []string{"x", "y", "z"} {
		n.fixture.Namespaces[ns] = map[string]string{"ns": ns}
		n.model.SetNamespace(ns, map[string]string{"ns": ns})
		for j, name := range []string{"a", "b", "c"} {
			p := model.Pod{Key: model.Key{Namespace: ns, Name: name}, Labels: map[string]string{"pod": name}, Local: true,
				IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i), byte(10 + j)}),
					netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", i+1, 10+j))}}
			for proto, number := range oracle.Protocols {
				for _, port := range []uint16{80, 81} {
					p.Ports = append(p.Ports,
						model.PodPort{Name: model.Name{Name: fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(proto))),
							Proto: number}, Value: port})
				}
			}
			n.addPod(p.IPs...)
			n.setPod(p)
			ips = append(ips, p.IPs...)
		}
	}
	for _, src := range ips {
		for _, dst := range ips {
			if src == dst || src.Is4() != dst.Is4() {
				continue // a pod reaches itself without the node
			}
			for _, proto := range oracle.Protocols {
				for _, port := range []uint16{80, 81} {
					all = append(all, oracle.Packet{Src: src, Dst: dst, Proto: proto, Port: port})
				}
			}
		}
	}
	return all
}

func policy(ns, name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}
}

func pods(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"pod": name}}
}

func spaces(names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "ns", Operator: metav1.LabelSelectorOpIn,
		Values: names}}}
}

func port(proto corev1.Protocol, p intstr.IntOrString, end ...int32) networkingv1.NetworkPolicyPort {
	out := networkingv1.NetworkPolicyPort{Protocol: &proto, Port: &p}
	if len(end) > 0 {
		out.EndPort = &end[0]
	}
	return out
}

var (
	tcp80     = port(corev1.ProtocolTCP, intstr.FromInt32(80))
	onlyIn    = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	onlyOut   = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	both      = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	everybody = metav1.LabelSelector{}
)

type peers = []networkingv1.NetworkPolicyPeer

func from(p peers, on ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyIngressRule {
	return []networkingv1.NetworkPolicyIngressRule{{From: p, Ports: on}}
}

func to(p peers, on ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyEgressRule {
	return []networkingv1.NetworkPolicyEgressRule{{To: p, Ports: on}}
}

// matrix are the situations of the table, each with how many of the 864
// packets (two families) get through.
var matrix = []struct {
	name     string
	allowed  int
	policies []*networkingv1.NetworkPolicy
}{
	{"no policy", 864, nil},
	{"deny ingress", 576, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PolicyTypes: onlyIn})}},
	{"deny egress", 576, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PolicyTypes: onlyOut})}},
	{"deny both", 360, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PolicyTypes: both})}},
	{"an empty rule allows all", 864, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PolicyTypes: both,
		Ingress: []networkingv1.NetworkPolicyIngressRule{{}}, Egress: []networkingv1.NetworkPolicyEgressRule{{}}})}},
	{"types follow rules", 864 - 12*8 - 12*7,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Egress: to(peers{{PodSelector: pods("b")}})})}},
	{"from pods of the namespace", 864 - 12*7,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(peers{{PodSelector: pods("b")}})})}},
	{"from namespaces", 864 - 12*5, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
		Ingress: from(peers{{NamespaceSelector: spaces("y")}})}),
	}},
	{"from pods in namespaces", 864 - 12*7,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(peers{{NamespaceSelector: spaces("y"), PodSelector: pods("b")}})})}},
	{"from pods, or from namespaces", 864 - 12*4,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(peers{{NamespaceSelector: spaces("y")}, {PodSelector: pods("b")}})})}},
	{"two policies add up", 864 - 12*8 + 16 + 2, []*networkingv1.NetworkPolicy{
		policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), Ingress: from(nil, tcp80)}),
		policy("x", "q", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), Ingress: from(peers{{PodSelector: pods("b")}},
			port(corev1.ProtocolUDP, intstr.FromInt32(81)))})}},
	{"one port of one protocol", 864 - 12*8 + 2*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(nil, tcp80)})}},
	{"SCTP alone", 864 - 12*8 + 2*8, []*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
		Ingress: from(nil, port(corev1.ProtocolSCTP, intstr.FromInt32(80)))})}},
	{"a named port in", 864 - 12*8 + 2*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(nil, port(corev1.ProtocolUDP, intstr.FromString("serve-81-udp")))})}},
	{"a named port out", 864 - 12*8 + 2*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(nil, port(corev1.ProtocolTCP, intstr.FromString("serve-80-tcp")))})}},
	{"a name of another protocol", 864 - 12*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(nil, port(corev1.ProtocolTCP, intstr.FromString("serve-81-udp")))})}},
	{"a range of ports", 864 - 12*8 + 4*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(nil, port(corev1.ProtocolTCP, intstr.FromInt32(79), 81))})}},
	{"a whole protocol", 864 - 12*8 + 4*8,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(nil, networkingv1.NetworkPolicyPort{Protocol: tcp80.Protocol})})}},
	{"out to a block", 864 - 12*8 + 6*3,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(peers{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.1.0/24"}}})})}},
	{"out to a block with a hole", 864 - 12*8 + 6*2,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(peers{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.1.0/24", Except: []string{"10.0.1.11/32"}}}})})}},
	{"a hole that another policy fills", 864 - 12*8 + 6*3, []*networkingv1.NetworkPolicy{
		policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(peers{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.1.0/24", Except: []string{"10.0.1.11/32"}}}})}),
		policy("x", "q", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(peers{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.1.11/32"}}})})}},
	{"in from a block of IPv6", 864 - 12*8 + 6*3,
		[]*networkingv1.NetworkPolicy{policy("x", "p", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"),
			Ingress: from(peers{{IPBlock: &networkingv1.IPBlock{CIDR: "fd00::2:0/112"}}})})}},
	{"both sides must agree", 864 - 12*8 - 12*6, []*networkingv1.NetworkPolicy{
		policy("x", "in", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyIn}),
		policy("y", "out", networkingv1.NetworkPolicySpec{PodSelector: *pods("a"), PolicyTypes: onlyOut,
			Egress: to(peers{{PodSelector: pods("a"), NamespaceSelector: &everybody}, {NamespaceSelector: spaces("z"),
				PodSelector: pods("a")}})})}},
}

// printable has the nft program list all tables and read its own list: other
// tools of a host do both.
func (n *node) printable() {
	n.t.Helper()
	if n.fake != nil {
		return
	}
	n.must(netnstest.In(n.ns, func() error {
		for _, f := range []string{"ip", "ip6"} {
			out, err := exec.Command("nft", "list", "table", f, "test-policy").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if err := run(strings.Replace(string(out), "test-policy", "copy", 1), "nft", "-c", "-f", "-"); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
		}
		return run("", "nft", "list", "ruleset")
	}))
}

// TestMatrix sends every packet of the matrix through the real kernel and the
// one in memory, in both families and with all three protocols.
func TestMatrix(t *testing.T) { onBoth(t, everyPacket) }

func everyPacket(t *testing.T, n *node) {
	all := cluster(n)
	n.model.Commit()
	n.must(n.w.Replace(n.model.Snapshot()))
	for _, c := range matrix {
		t.Run(c.name, func(t *testing.T) {
			n.t = t
			for _, np := range c.policies {
				n.setPolicy(np)
			}
			n.must(n.w.Apply(n.model.Commit()))
			if got := n.agree(all); got != c.allowed {
				t.Errorf("%d of %d packets are allowed, want %d", got, len(all), c.allowed)
			}
			n.printable()
			for _, np := range c.policies {
				n.deletePolicy(np.Namespace, np.Name)
			}
			n.must(n.w.Apply(n.model.Commit()))
		})
	}
	n.t = t
	n.agree(all)
}
