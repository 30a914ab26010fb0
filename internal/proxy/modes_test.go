package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	kubeproxyconfigv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/berth-dev/berth/internal/proxy/model"
	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// running is a whole proxy on a suite's node.
type running struct {
	*suite
	client *fake.Clientset
	synced chan struct{}
	ended  chan error
	stop   context.CancelFunc
}

// kubeProxy is a configuration to be filled.
type kubeProxy = kubeproxyconfigv1alpha1.KubeProxyConfiguration

// start runs a proxy until the test, or stop, ends it.
func (s *suite) start(c kubeProxy, objects ...runtime.Object) *running {
	s.t.Helper()
	r := &running{suite: s, client: fake.NewClientset(objects...), synced: make(chan struct{}), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(s.t.Context())
	r.stop = cancel
	go func() {
		r.ended <- netnstest.In(s.node, func() error {
			return Run(ctx, Config{NodeName: nodeName, Client: r.client, Informers: informers.NewSharedInformerFactory(r.client, 0),
				Instance: "berth-modes", Metrics: prometheus.NewRegistry(),
				HealthzBind: "127.0.0.1:10256", Config: &c, Synced: func() { close(r.synced) }})
		})
	}()
	return r
}

// wait returns once the rules are in the kernel.
func (r *running) wait() {
	r.t.Helper()
	select {
	case <-r.synced:
	case err := <-r.ended:
		r.t.Fatalf("the proxy ended: %v", err)
	}
}

// end stops the proxy and takes its rules away.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	r.must(<-r.ended)
	r.must(netnstest.In(r.node, func() error { return Cleanup("berth-modes") }))
}

func (p plan) nodeObject(podCIDRs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "1"}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: p.nodeIP.String()}}}}
}

func (s *suite) asked(place string, to netip.AddrPort) string {
	return s.words(place, s.ask(s.spaces[place], "tcp", to.String()))
}

// answers fails unless a place gets an answer. One that differs is asked for
// again with more patience: a busy machine is slow.
func (s *suite) answers(place string, to netip.AddrPort, want string) {
	s.t.Helper()
	got := s.asked(place, to)
	if got != want {
		w := *s.fixture
		w.patience = 10 * s.patience
		got = s.words(place, w.ask(s.spaces[place], "tcp", to.String()))
	}
	if got != want {
		s.t.Errorf("%s to %s: got %q, want %q", place, to, got, want)
	}
}

// TestLocalTraffic runs every way to tell local traffic: it decides whose
// source is kept at a cluster IP, and who may pass an external Local policy.
func TestLocalTraffic(t *testing.T) {
	inside := kase{name: "ClusterIP, internal Local", ends: []where{"b"}}
	balanced := kase{name: "LoadBalancer, external Local, endpoints elsewhere", edit: both(balancer, externalLocal), ends: []where{"far"}}
	prefix := func(n string) kubeProxy {
		return kubeProxy{DetectLocalMode: "InterfaceNamePrefix",
			DetectLocal: kubeproxyconfigv1alpha1.DetectLocalConfiguration{InterfaceNamePrefix: n}}
	}
	type want struct{ pod, a, outside string }
	all := want{"b kept", "b kept", "b node"}
	reached, both := want{"far kept", "far kept", "silence"}, "10.244.0.0/24,fd00:10:244::/64"
	for _, f := range []model.Family{model.V4, model.V6} {
		s := newSuite(t, f)
		for _, c := range []struct {
			name     string
			config   kubeProxy
			podCIDRs []string
			in, out  want
		}{
			{"ClusterCIDR", kubeProxy{DetectLocalMode: "ClusterCIDR", ClusterCIDR: both}, nil, all, reached},
			{"ClusterCIDR without any", kubeProxy{DetectLocalMode: "ClusterCIDR"}, nil, want{"b kept", "b kept", "b kept"},
				want{"silence", "silence", "silence"}},
			{"NodeCIDR", kubeProxy{DetectLocalMode: "NodeCIDR", ClusterCIDR: "172.16.0.0/12"}, strings.Split(both, ","), all, reached},
			{"BridgeInterface", kubeProxy{DetectLocalMode: "BridgeInterface",
				DetectLocal: kubeproxyconfigv1alpha1.DetectLocalConfiguration{BridgeInterface: "veth2"}}, nil,
				want{"b kept", "b node", "b node"}, want{"far kept", "silence", "silence"}},
			{"InterfaceNamePrefix", prefix("veth"), nil, all, reached},
			{"InterfaceNamePrefix of others", prefix("cali"), nil, want{"b node", "b node", "b node"},
				want{"silence", "silence", "silence"}},
			{"masqueradeAll", kubeProxy{DetectLocalMode: "ClusterCIDR", ClusterCIDR: both,
				NFTables: kubeproxyconfigv1alpha1.KubeProxyNFTablesConfiguration{MasqueradeAll: true}}, nil,
				want{"b node", "b node", "b node"}, reached},
		} {
			t.Run(fmt.Sprint(f, " ", c.name), func(t *testing.T) {
				defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
				s.t = t
				in, out := inside.service(s.plan), balanced.service(s.plan)
				r := s.start(c.config, s.nodeObject(c.podCIDRs...), in, inside.slice(s.plan), out, balanced.slice(s.plan))
				r.wait()
				defer r.end()
				for place, w := range map[string][2]string{"pod": {c.in.pod, c.out.pod}, "a": {c.in.a, c.out.a},
					"outside": {c.in.outside, c.out.outside}} {
					s.answers(place, clusterIPOf(in, s.plan), w[0])
					s.answers(place, lbOf(out, s.plan), w[1])
				}
			})
		}
	}
}

// TestNodeCIDRComesAndChanges starts with a Node that has no pod CIDR yet, and
// ends when it gets another one.
func TestNodeCIDRComesAndChanges(t *testing.T) {
	s := newSuite(t, model.V4)
	c := kase{name: cases[0].name, ends: []where{"b"}}
	svc := c.service(s.plan)
	r := s.start(kubeProxy{DetectLocalMode: "NodeCIDR"}, s.nodeObject(), svc, c.slice(s.plan))
	// The Node is seen, and yet nothing is programmed.
	s.until("health of an eligible node", func() bool { code, _, _ := s.get("http://127.0.0.1:10256/healthz"); return code == 200 })
	if chains, err := s.w.kernel.Chains(model.V4, "berth-modes"); err != nil || len(chains) > 0 {
		t.Errorf("rules without a pod CIDR: %v %v", chains, err)
	}
	update := func(version, cidr string) {
		n := s.nodeObject(cidr)
		n.ResourceVersion = version
		_, err := r.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		s.must(err)
	}
	update("2", "10.244.0.0/24")
	r.wait()
	expect(t, "pod to the cluster IP", s.asked("pod", clusterIPOf(svc, s.plan)), "b kept")
	update("3", "10.244.7.0/24")
	if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "spec.podCIDRs of node here changed") {
		t.Errorf("another pod CIDR: ended with %v", err)
	}
	// The rules stay for anyone who starts the proxy again.
	expect(t, "pod to the cluster IP", s.asked("pod", clusterIPOf(svc, s.plan)), "b kept")
}

// TestNodePortAddresses has node ports, and health checks, answer on addresses
// that come and go: those within CIDRs, or those the Node object names.
func TestNodePortAddresses(t *testing.T) {
	second := netip.MustParseAddr("192.0.2.11")
	for _, c := range []struct {
		addresses []string
		// second says whether the node's second address counts: when the
		// onHost has it, and when the Node object names it.
		onHost, node bool
	}{
		{[]string{"192.0.2.0/24", "fd00::/8"}, true, true},
		{[]string{"primary"}, false, true},
		{nil, false, true},
		{[]string{"192.0.2.10/32"}, false, false},
		{[]string{"0.0.0.0/0", "::/0"}, true, true},
	} {
		t.Run(fmt.Sprint(c.addresses), func(t *testing.T) {
			s := newSuite(t, model.V4)
			k := kase{name: "NodePort", edit: both(balancer, externalLocal), ends: []where{"a"}}
			svc := k.service(s.plan)
			svc.Spec.HealthCheckNodePort = 32001
			r := s.start(kubeProxy{NodePortAddresses: c.addresses}, s.nodeObject(), svc, k.slice(s.plan))
			r.wait()
			defer r.end()
			port := uint16(svc.Spec.Ports[0].NodePort)
			answers := func(a netip.Addr) bool {
				return strings.HasPrefix(s.asked("outside", netip.AddrPortFrom(a, port)), "a ")
			}
			check := func(a netip.Addr, want bool) {
				t.Helper()
				s.until(fmt.Sprintf("node port and health check on %s: %v", a, want), func() bool {
					code, _, _ := s.get(fmt.Sprintf("http://%s:32001/", a))
					return answers(a) == want && (code == 200) == want
				})
			}
			check(s.nodeIP, true)
			s.must(netnstest.In(s.node, func() error { return run("ip", "addr", "add", second.String()+"/24", "dev", "eth0") }))
			check(second, c.onHost)
			n := s.nodeObject()
			n.ResourceVersion = "2"
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: second.String()})
			_, err := r.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
			s.must(err)
			check(second, c.node)
			check(s.nodeIP, true)
			if c.onHost != c.node {
				return
			}
			s.must(netnstest.In(s.node, func() error { return run("ip", "addr", "del", second.String()+"/24", "dev", "eth0") }))
			if c.addresses != nil && c.addresses[0] == "192.0.2.0/24" {
				s.until("the address goes from the kernel's set", func() bool {
					rows := 0
					s.must(s.w.kernel.Rows(model.V4, "berth-modes", "nodeport-ips", func(_, _ []byte) bool { rows++; return true }))
					return rows == 1
				})
			}
			check(s.nodeIP, true)
		})
	}
}
