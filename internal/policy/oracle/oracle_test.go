package oracle

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/policy/model"
)

var (
	webIP, dbIP, farIP = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.1.3")
	outside            = netip.MustParseAddr("192.0.2.7")
)

// three is a cluster of three pods: web and db of namespace a on this node, far
// of namespace b on another.
func three(policies ...*networkingv1.NetworkPolicy) Cluster {
	w := NewCluster()
	w.Namespaces["a"], w.Namespaces["b"] = map[string]string{"name": "a"}, map[string]string{"name": "b"}
	add := func(ns, name string, ip netip.Addr, local bool) {
		k := model.Key{Namespace: ns, Name: name}
		w.Pods[k] = model.Pod{Key: k, IPs: []netip.Addr{ip}, Local: local, Labels: map[string]string{"app": name},
			Ports: []model.PodPort{{Name: model.Name{Name: "http", Proto: 6}, Value: 80}}}
	}
	add("a", "web", webIP, true)
	add("a", "db", dbIP, true)
	add("b", "far", farIP, false)
	for _, p := range policies {
		w.Policies[model.Key{Namespace: p.Namespace, Name: p.Name}] = p
	}
	return w
}

func app(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// guard is a policy of namespace a that selects web.
func guard(change func(*networkingv1.NetworkPolicySpec)) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: *app("web")}}
	change(&p.Spec)
	return p
}

func ingress(from ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	return guard(func(s *networkingv1.NetworkPolicySpec) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: from}}
	})
}

func onPorts(ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
	return guard(func(s *networkingv1.NetworkPolicySpec) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: ports}}
	})
}

func named(p *networkingv1.NetworkPolicy, name string) *networkingv1.NetworkPolicy {
	p.Name = name
	return p
}

// TestDocumentedSemantics holds the oracle against the API's documentation
// (networking.k8s.io/v1 NetworkPolicy), case by case: the oracle is what the
// real thing is compared with, so nothing but these lines stands behind it.
func TestDocumentedSemantics(t *testing.T) {
	type peer = networkingv1.NetworkPolicyPeer
	type port = networkingv1.NetworkPolicyPort
	deny := guard(func(*networkingv1.NetworkPolicySpec) {})
	egress := func(to ...peer) *networkingv1.NetworkPolicy {
		return guard(func(s *networkingv1.NetworkPolicySpec) {
			s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
			if to != nil {
				s.Egress = []networkingv1.NetworkPolicyEgressRule{{To: to}}
			}
		})
	}
	block := func(cidr string, except ...string) peer {
		return peer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	number := func(n int) *intstr.IntOrString { return ptr.To(intstr.FromInt32(int32(n))) }
	for _, c := range []struct {
		why      string
		policies []*networkingv1.NetworkPolicy
		src, dst netip.Addr
		port     uint16
		want     bool
	}{
		{"no policy", nil, dbIP, webIP, 80, true},
		{"a policy without rules isolates", []*networkingv1.NetworkPolicy{deny}, dbIP, webIP, 80, false},
		{"but not other pods", []*networkingv1.NetworkPolicy{deny}, webIP, dbIP, 80, true},
		{"nor what the pod sends", []*networkingv1.NetworkPolicy{deny}, webIP, outside, 80, true},
		{"nor a pod to itself", []*networkingv1.NetworkPolicy{deny}, webIP, webIP, 80, true},
		{"a rule without peers admits all", []*networkingv1.NetworkPolicy{ingress()}, outside, webIP, 80, true},
		{"peer by labels, own namespace", []*networkingv1.NetworkPolicy{ingress(peer{PodSelector: app("db")})}, dbIP, webIP, 80, true},
		{"peer by labels, another pod", []*networkingv1.NetworkPolicy{ingress(peer{PodSelector: app("x")})}, dbIP, webIP, 80, false},
		{"peer by labels, another namespace", []*networkingv1.NetworkPolicy{ingress(peer{PodSelector: app("far")})}, farIP, webIP, 80,
			false},
		{"peer by namespace", []*networkingv1.NetworkPolicy{ingress(peer{NamespaceSelector: &metav1.LabelSelector{}})}, farIP, webIP, 80,
			true},
		{"a namespace selector means pods", []*networkingv1.NetworkPolicy{ingress(peer{NamespaceSelector: &metav1.LabelSelector{}})},
			outside, webIP, 80, false},
		{"both selectors must match", []*networkingv1.NetworkPolicy{ingress(peer{NamespaceSelector: &metav1.LabelSelector{},
			PodSelector: app("db")})}, farIP, webIP, 80, false},
		{"block", []*networkingv1.NetworkPolicy{ingress(block("192.0.2.0/24"))}, outside, webIP, 80, true},
		{"outside the block", []*networkingv1.NetworkPolicy{ingress(block("198.51.100.0/24"))}, outside, webIP, 80, false},
		{"excepted from the block", []*networkingv1.NetworkPolicy{ingress(block("192.0.2.0/24", "192.0.2.4/30"))}, outside, webIP, 80,
			false},
		{"beside the exception", []*networkingv1.NetworkPolicy{ingress(block("192.0.2.0/24", "192.0.2.8/30"))}, outside, webIP, 80, true},
		{"port", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80)})}, dbIP, webIP, 80, true},
		{"another port", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80)})}, dbIP, webIP, 81, false},
		{"another protocol", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80), Protocol: ptr.To(corev1.ProtocolUDP)})},
			dbIP, webIP, 80, false},
		{"a protocol's every port", []*networkingv1.NetworkPolicy{onPorts(port{Protocol: ptr.To(corev1.ProtocolTCP)})}, dbIP, webIP, 99,
			true},
		{"named port of the pod", []*networkingv1.NetworkPolicy{onPorts(port{Port: ptr.To(intstr.FromString("http"))})}, dbIP, webIP, 80,
			true},
		{"named port, another number", []*networkingv1.NetworkPolicy{onPorts(port{Port: ptr.To(intstr.FromString("http"))})},
			dbIP, webIP, 81, false},
		{"first of a range", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80), EndPort: ptr.To[int32](90)})}, dbIP, webIP, 80,
			true},
		{"last of a range", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80), EndPort: ptr.To[int32](90)})}, dbIP, webIP, 90,
			true},
		{"beyond a range", []*networkingv1.NetworkPolicy{onPorts(port{Port: number(80), EndPort: ptr.To[int32](90)})}, dbIP, webIP, 91,
			false},
		{"egress only leaves ingress open", []*networkingv1.NetworkPolicy{egress()}, dbIP, webIP, 80, true},
		{"egress isolates the sender", []*networkingv1.NetworkPolicy{egress()}, webIP, dbIP, 80, false},
		{"egress to a peer", []*networkingv1.NetworkPolicy{egress(peer{PodSelector: app("db")})}, webIP, dbIP, 80, true},
		{"egress rules without types cover both ways", []*networkingv1.NetworkPolicy{guard(func(s *networkingv1.NetworkPolicySpec) {
			s.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []peer{block("198.51.100.0/24")}}}
		})}, webIP, dbIP, 80, false},
		{"policies add up", []*networkingv1.NetworkPolicy{deny, named(ingress(peer{PodSelector: app("db")}), "q")}, dbIP, webIP, 80, true},
		{"a pod of another node is not guarded here",
			[]*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p"}}},
			webIP, farIP, 80, true},
	} {
		if got := three(c.policies...).Allows(Packet{Src: c.src, Dst: c.dst, Proto: 6, Port: c.port}); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}

// TestOwner: an address that two pods have is the one's that is not leaving,
// then the newest's.
func TestOwner(t *testing.T) {
	for _, c := range []struct {
		why  string
		a, b model.Pod
		want string
	}{
		{"the one that stays", model.Pod{Leaving: true, Created: 2}, model.Pod{Created: 1}, "b"},
		{"the newest", model.Pod{Created: 1}, model.Pod{Created: 2}, "b"},
		{"the last by name", model.Pod{}, model.Pod{}, "b"},
	} {
		for range 20 { // a map has no order
			w := NewCluster()
			c.a.Key, c.b.Key = model.Key{Name: "a"}, model.Key{Name: "b"}
			c.a.IPs, c.b.IPs = []netip.Addr{webIP}, []netip.Addr{webIP}
			w.Pods[c.a.Key], w.Pods[c.b.Key] = c.a, c.b
			if got := w.owner(webIP); got.Name != c.want {
				t.Fatalf("%s: %s", c.why, got.Name)
			}
		}
	}
	if w := NewCluster(); w.owner(webIP) != nil {
		t.Error("an address of nobody has an owner")
	}
}

// TestHistories: equal seeds give equal histories, or no failure could be found
// again; and histories reach every kind of change.
func TestHistories(t *testing.T) {
	a, b, other := NewHistory(7), NewHistory(7), NewHistory(8)
	namespaces := 0
	for range 200 {
		a.Step()
		namespaces = max(namespaces, len(a.Cluster.Namespaces))
		b.Step()
		other.Step()
	}
	if !reflect.DeepEqual(a.Cluster, b.Cluster) || RandomPacket(a.Rand) != RandomPacket(b.Rand) {
		t.Error("the same seed gives another history")
	}
	if reflect.DeepEqual(a.Cluster, other.Cluster) {
		t.Error("another seed gives the same history")
	}
	if len(a.Cluster.Pods) == 0 || len(a.Cluster.Policies) == 0 || namespaces == 0 {
		t.Errorf("after 200 steps there are %d pods, %d policies, and never more than %d namespaces", len(a.Cluster.Pods),
			len(a.Cluster.Policies), namespaces)
	}
	allowed := map[bool]int{}
	for range 1000 {
		allowed[a.Cluster.Allows(RandomPacket(a.Rand))]++
	}
	if allowed[true] < 20 || allowed[false] < 20 {
		t.Errorf("of 1000 random packets %d pass: the comparison says little", allowed[true])
	}
}
