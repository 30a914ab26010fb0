package loadbalancer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func service(name string, age int, f ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyCluster,
			Ports:                 []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
	}
	for _, g := range f {
		g(s)
	}
	return s
}

func node(name string, f ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2." + name[1:]},
			{Type: v1.NodeInternalIP, Address: "2001:db8::" + name[1:]}},
		Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
	}}
	for _, g := range f {
		g(n)
	}
	return n
}

func pod(name, node string, port int32, hostNetwork bool) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node,
		HostNetwork: hostNetwork}}
	cp := v1.ContainerPort{ContainerPort: port, HostPort: port}
	if hostNetwork {
		cp.HostPort = 0
	}
	p.Spec.Containers = []v1.Container{{Ports: []v1.ContainerPort{cp}}}
	return p
}

// say is a Result on one line.
func say(r result) string {
	if r.Ignore {
		return "ignored"
	}
	var ips []string
	for _, i := range r.Ingress {
		ips = append(ips, i.IP)
	}
	out := strings.Join(ips, " ")
	if r.Problem != "" {
		out += fmt.Sprintf(" (%s)", r.Problem)
	}
	return strings.TrimSpace(out)
}

func TestPlan(t *testing.T) {
	class := func(c string) func(*v1.Service) { return func(s *v1.Service) { s.Spec.LoadBalancerClass = &c } }
	has := func(ips ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
			}
		}
	}
	local := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	dual := func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol} }
	notReady := func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }
	two := []*v1.Node{node("n1"), node("n2")}
	ssh := map[Port]string{{v1.ProtocolTCP, 22}: "ssh", {v1.ProtocolTCP, 80}: "the tests"}
	for name, c := range map[string]struct {
		in   input
		want string
	}{
		"every ready node":             {input{Service: service("a", 1), Nodes: two}, "192.0.2.1 192.0.2.2"},
		"our class":                    {input{Service: service("a", 1, class(Class)), Nodes: two}, "192.0.2.1 192.0.2.2"},
		"another class":                {input{Service: service("a", 1, class("example.com/lb")), Nodes: two}, "ignored"},
		"another controller's address": {input{Service: service("a", 1, has("203.0.113.9")), Nodes: two}, "ignored"},
		"a name is another's": {input{Service: service("a", 1,
			func(s *v1.Service) { s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "lb"}} }), Nodes: two}, "ignored"},
		"our class beats an address": {input{Service: service("a", 1, class(Class), has("203.0.113.9")), Nodes: two},
			"192.0.2.1 192.0.2.2"},
		"type changed away": {input{Service: service("a", 1, has("192.0.2.1"),
			func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }), Nodes: two}, ""},
		"ClusterIP of another's past": {input{Service: service("a", 1, has("203.0.113.9"),
			func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }), Nodes: two}, "ignored"},
		"families in order": {input{Service: service("a", 1, dual), Nodes: two}, "2001:db8::1 2001:db8::2 192.0.2.1 192.0.2.2"},
		"external before internal": {input{Service: service("a", 1), Nodes: []*v1.Node{node("n1", func(n *v1.Node) {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: "198.51.100.1"})
		})}}, "198.51.100.1"},
		"one address asked for": {input{Service: service("a", 1, func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" }), Nodes: two},
			"192.0.2.2"},
		"a node that is lost": {input{Service: service("a", 1), Nodes: []*v1.Node{node("n1", notReady), node("n2")}}, "192.0.2.2"},
		"every node lost":     {input{Service: service("a", 1), Nodes: []*v1.Node{node("n1", notReady)}}, "(Node n1 is not Ready)"},
		"no node":             {input{Service: service("a", 1)}, "(the cluster has no node)"},
		"excluded": {input{Service: service("a", 1),
			Nodes: []*v1.Node{node("n1", func(n *v1.Node) { n.Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""} })}},
			"(Node n1 has the label node.kubernetes.io/exclude-from-external-load-balancers)"},
		"about to be removed": {input{Service: service("a", 1),
			Nodes: []*v1.Node{node("n1", func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} })}},
			"(Node n1 has the taint ToBeDeletedByClusterAutoscaler)"},
		"local policy": {input{Service: service("a", 1, local), Nodes: two, Local: map[string]bool{"n2": true}}, "192.0.2.2"},
		"local policy, no endpoint": {input{Service: service("a", 1, local), Nodes: two},
			"(no node runs a ready endpoint, and externalTrafficPolicy is Local)"},
		"reserved port": {input{Service: service("a", 1), Nodes: two, Reserved: ssh},
			"(port 80/TCP belongs to the tests; choose another port for the Service)"},
		"host port on one node": {input{Service: service("a", 1), Nodes: two, Pods: []*v1.Pod{pod("web", "n1", 80, false)}},
			"192.0.2.2 (port 80/TCP of Node n1 belongs to Pod default/web; choose another port for one of them)"},
		"pod on the node's network": {input{Service: service("a", 1), Nodes: two[:1], Pods: []*v1.Pod{pod("web", "n1", 80, true)}},
			"(port 80/TCP of Node n1 belongs to Pod default/web; choose another port for one of them)"},
		"pod of another port": {input{Service: service("a", 1), Nodes: two[:1], Pods: []*v1.Pod{pod("web", "n1", 81, true)}},
			"192.0.2.1"},
		"older rival": {input{Service: service("b", 1), Nodes: two, Rivals: []*v1.Service{service("a", 2)}},
			"(port 80/TCP belongs to the older Service default/a; choose another port, or another class)"},
		"younger rival": {input{Service: service("b", 2), Nodes: two, Rivals: []*v1.Service{service("a", 1)}},
			"192.0.2.1 192.0.2.2"},
		"rival of the same second": {input{Service: service("b", 1), Nodes: two, Rivals: []*v1.Service{service("a", 1)}},
			"(port 80/TCP belongs to the older Service default/a; choose another port, or another class)"},
		"rival of the same second, when it has nothing": {input{Service: service("b", 1, has("192.0.2.1")), Nodes: two,
			Rivals: []*v1.Service{service("a", 1)}}, "192.0.2.1 192.0.2.2"},
		"rival that goes": {input{Service: service("b", 1), Nodes: two,
			Rivals: []*v1.Service{service("a", 2, func(s *v1.Service) { s.DeletionTimestamp = &metav1.Time{} })}},
			"192.0.2.1 192.0.2.2"},
		"rival of another class": {input{Service: service("b", 1), Nodes: two, Rivals: []*v1.Service{service("a", 2, class("x.y/z"))}},
			"192.0.2.1 192.0.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := say(plan(c.in)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestNoTwoServicesShareAPort: of random Services on random nodes, no two get
// the same port of the same address, and the order of the inputs is nothing.
func TestNoTwoServicesShareAPort(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		var nodes []*v1.Node
		for i := range 1 + r.IntN(25) {
			nodes = append(nodes, node(fmt.Sprint("n", i+1)))
		}
		var all []*v1.Service
		for i := range 1 + r.IntN(6) {
			s := service(fmt.Sprint("s", i), r.IntN(3))
			s.Spec.Ports[0].Port = int32(80 + r.IntN(2))
			all = append(all, s)
		}
		given := map[string]string{}
		for _, s := range all {
			res := plan(input{Service: s, Nodes: slices.Clone(nodes), Rivals: all})
			r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			if again := plan(input{Service: s, Nodes: slices.Clone(nodes), Rivals: all}); say(again) != say(res) {
				t.Fatalf("seed %d: %s and %s of the same input", seed, say(res), say(again))
			}
			if len(res.Ingress) > MaxNodes {
				t.Fatalf("seed %d: %d addresses", seed, len(res.Ingress))
			}
			for _, in := range res.Ingress {
				key := fmt.Sprint(in.IP, " ", s.Spec.Ports[0].Port)
				if other := given[key]; other != "" {
					t.Fatalf("seed %d: %s goes to %s and %s", seed, key, other, s.Name)
				}
				given[key] = s.Name
			}
		}
	}
}

// TestANewNodeMovesNothing: once a Service has its addresses, a further node
// beyond MaxNodes changes none of them.
func TestANewNodeMovesNothing(t *testing.T) {
	var nodes []*v1.Node
	for i := range MaxNodes + 5 {
		nodes = append(nodes, node(fmt.Sprint("n", i+1)))
	}
	s := service("a", 1)
	first := plan(input{Service: s, Nodes: slices.Clone(nodes)})
	s.Status.LoadBalancer.Ingress = first.Ingress
	for i := range 20 {
		nodes = append(nodes, node(fmt.Sprint("n", 100+i)))
		if got := plan(input{Service: s, Nodes: slices.Clone(nodes)}); say(got) != say(first) {
			t.Fatalf("%s, was %s", say(got), say(first))
		}
	}
}
