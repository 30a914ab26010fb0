package services_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

const ns = "default"

func bg() context.Context { return context.Background() }

type fixture struct {
	kubernetes.Interface
	svc    corev1.ServiceInterface
	config *rest.Config
}

func connect(env *apitest.Env) *fixture {
	c := kubernetes.NewForConfigOrDie(env.Config)
	return &fixture{c, c.CoreV1().Services(ns), env.Config}
}

func TestServices(t *testing.T) {
	before := repairs(t, "claimed")
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) {
		c.ServiceCIDRs = []string{"10.20.0.0/24", "fd00:20::/112"}
		c.ProxyToLoopback = true
	}))
	f := connect(env)
	for name, test := range map[string]func(*testing.T, *fixture){
		"cluster ip":    testClusterIP,
		"static ip":     testStaticIP,
		"headless":      testHeadless,
		"dual stack":    testDualStack,
		"node ports":    testNodePorts,
		"health port":   testHealthPort,
		"type changes":  testTypeChanges,
		"put keeps":     testPutKeeps,
		"rollback":      testRollback,
		"finalizer":     testFinalizer,
		"no node ports": testNoNodePorts,
		"dry run":       testDryRun,
		"concurrent":    testConcurrent,
		"status":        testStatus,
		"proxy":         testProxy,
		"service range": testServiceRange,
	} {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
	if n := repairs(t, "claimed") - before; n != 0 {
		t.Errorf("the repair had to record %v addresses or ports that should have been", n)
	}
}

// repairs reads the counter of repairs, which all servers of the process share.
func repairs(t *testing.T, action string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "berth_service_allocation_repairs_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == action {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func service(name string, change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []v1.ServicePort{{Name: "web", Port: 80}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func typ(t v1.ServiceType) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Type = t } }

func ip(text string) func(*v1.Service) { return func(s *v1.Service) { s.Spec.ClusterIP = text } }

func (f *fixture) create(t *testing.T, s *v1.Service) *v1.Service {
	t.Helper()
	out, err := f.svc.Create(bg(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating service %s: %v", s.Name, err)
	}
	return out
}

func (f *fixture) update(t *testing.T, s *v1.Service) *v1.Service {
	t.Helper()
	out, err := f.svc.Update(bg(), s, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("updating service %s: %v", s.Name, err)
	}
	return out
}

func (f *fixture) remove(t *testing.T, name string) {
	t.Helper()
	if err := f.svc.Delete(bg(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// recorded says whether the address has an IPAddress object.
func (f *fixture) recorded(t *testing.T, ip string) bool {
	t.Helper()
	_, err := f.NetworkingV1().IPAddresses().Get(bg(), ip, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// refused wants a 422 that contains the text.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want Invalid with %q", err, text)
	}
}

func testClusterIP(t *testing.T, f *fixture) {
	s := f.create(t, service("plain"))
	if !strings.HasPrefix(s.Spec.ClusterIP, "10.20.0.") || len(s.Spec.ClusterIPs) != 1 || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP {
		t.Fatalf("got addresses %s %v", s.Spec.ClusterIP, s.Spec.ClusterIPs)
	}
	if last, _ := strconv.Atoi(strings.TrimPrefix(s.Spec.ClusterIP, "10.20.0.")); last < 17 {
		t.Errorf("dynamic address %s lies in the band for static ones", s.Spec.ClusterIP)
	}
	if *s.Spec.IPFamilyPolicy != v1.IPFamilyPolicySingleStack || s.Spec.IPFamilies[0] != v1.IPv4Protocol {
		t.Errorf("got %s %v", *s.Spec.IPFamilyPolicy, s.Spec.IPFamilies)
	}
	a, err := f.NetworkingV1().IPAddresses().Get(bg(), s.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Spec.ParentRef; p.Resource != "services" || p.Namespace != ns || p.Name != "plain" ||
		a.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" || a.Labels["ipaddress.kubernetes.io/ip-family"] != "IPv4" {
		t.Errorf("address object is %+v", a)
	}
	f.remove(t, "plain")
	if f.recorded(t, s.Spec.ClusterIP) {
		t.Error("the address outlived its service")
	}
}

func testStaticIP(t *testing.T, f *fixture) {
	f.create(t, service("chosen", ip("10.20.0.9")))
	_, err := f.svc.Create(bg(), service("same", ip("10.20.0.9")), metav1.CreateOptions{})
	refused(t, err, `failed to allocate IP 10.20.0.9: provided IP is already allocated`)
	_, err = f.svc.Create(bg(), service("outside", ip("10.99.0.1")), metav1.CreateOptions{})
	refused(t, err, `the provided IP (10.99.0.1) is not in the valid range. The range of valid IPs is 10.20.0.0/24`)
	_, err = f.svc.Create(bg(), service("broadcast", ip("10.20.0.255")), metav1.CreateOptions{})
	refused(t, err, `is not in the valid range`)
	f.remove(t, "chosen")
	f.create(t, service("same", ip("10.20.0.9")))
}

func testHeadless(t *testing.T, f *fixture) {
	s := f.create(t, service("headless", ip("None")))
	if s.Spec.ClusterIP != "None" || len(s.Spec.ClusterIPs) != 1 || s.Spec.ClusterIPs[0] != "None" {
		t.Errorf("got %s %v", s.Spec.ClusterIP, s.Spec.ClusterIPs)
	}
	s = f.create(t, service("bare", ip("None"), func(s *v1.Service) { s.Spec.Selector = nil }))
	if *s.Spec.IPFamilyPolicy != v1.IPFamilyPolicyRequireDualStack || len(s.Spec.IPFamilies) != 2 {
		t.Errorf("without selector got %s %v", *s.Spec.IPFamilyPolicy, s.Spec.IPFamilies)
	}
}

func testDualStack(t *testing.T, f *fixture) {
	prefer, single := v1.IPFamilyPolicyPreferDualStack, v1.IPFamilyPolicySingleStack
	s := f.create(t, service("dual", func(s *v1.Service) { s.Spec.IPFamilyPolicy = &prefer }))
	if len(s.Spec.ClusterIPs) != 2 || !strings.HasPrefix(s.Spec.ClusterIPs[1], "fd00:20::") {
		t.Fatalf("got %v", s.Spec.ClusterIPs)
	}
	second := s.Spec.ClusterIPs[1]
	s.Spec.IPFamilyPolicy = &single
	if s = f.update(t, s); len(s.Spec.ClusterIPs) != 1 || len(s.Spec.IPFamilies) != 1 {
		t.Errorf("after the downgrade: %v %v", s.Spec.ClusterIPs, s.Spec.IPFamilies)
	}
	if f.recorded(t, second) {
		t.Errorf("%s was not released by the downgrade", second)
	}
	s.Spec.IPFamilyPolicy = &prefer
	if s = f.update(t, s); len(s.Spec.ClusterIPs) != 2 || !f.recorded(t, s.Spec.ClusterIPs[1]) {
		t.Errorf("after the upgrade: %v", s.Spec.ClusterIPs)
	}
}

func testNodePorts(t *testing.T, f *fixture) {
	s := f.create(t, service("dns", typ(v1.ServiceTypeNodePort), func(s *v1.Service) {
		s.Spec.Ports = []v1.ServicePort{
			{Name: "udp", Port: 53, Protocol: v1.ProtocolUDP}, {Name: "tcp", Port: 53, Protocol: v1.ProtocolTCP},
			{Name: "web", Port: 80, Protocol: v1.ProtocolTCP},
		}
	}))
	a, b, c := s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort, s.Spec.Ports[2].NodePort
	if a != b || a == c || a < 30086 || c < 30086 || a > 32767 {
		t.Errorf("node ports are %d %d %d", a, b, c)
	}
	with := func(n int32) func(*v1.Service) { return func(s *v1.Service) { s.Spec.Ports[0].NodePort = n } }
	_, err := f.svc.Create(bg(), service("thief", typ(v1.ServiceTypeNodePort), with(a)), metav1.CreateOptions{})
	refused(t, err, "spec.ports[0].nodePort: Invalid value: "+fmt.Sprint(a)+": provided port is already allocated")
	_, err = f.svc.Create(bg(), service("low", typ(v1.ServiceTypeNodePort), with(80)), metav1.CreateOptions{})
	refused(t, err, "provided port is not in the valid range. The range of valid ports is 30000-32767")
	f.create(t, service("chosen-port", typ(v1.ServiceTypeNodePort), with(30001)))
	f.remove(t, "dns")
	f.create(t, service("heir", typ(v1.ServiceTypeNodePort), with(a)))
}

func testHealthPort(t *testing.T, f *fixture) {
	s := f.create(t, service("balanced", typ(v1.ServiceTypeLoadBalancer), func(s *v1.Service) {
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	}))
	port := s.Spec.HealthCheckNodePort
	if port < 30000 || port == s.Spec.Ports[0].NodePort {
		t.Fatalf("health port is %d, node port %d", port, s.Spec.Ports[0].NodePort)
	}
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
	if s = f.update(t, s); s.Spec.HealthCheckNodePort != 0 {
		t.Errorf("health port %d stayed after the policy left Local", s.Spec.HealthCheckNodePort)
	}
	f.create(t, service("next", typ(v1.ServiceTypeNodePort), func(s *v1.Service) { s.Spec.Ports[0].NodePort = port }))
}

func testTypeChanges(t *testing.T, f *fixture) {
	s := f.create(t, service("changing", typ(v1.ServiceTypeNodePort)))
	address, port := s.Spec.ClusterIP, s.Spec.Ports[0].NodePort
	s.Spec.Type = v1.ServiceTypeClusterIP
	if s = f.update(t, s); s.Spec.Ports[0].NodePort != 0 || s.Spec.ClusterIP != address || s.Spec.ExternalTrafficPolicy != "" {
		t.Errorf("as ClusterIP: %+v", s.Spec)
	}
	f.create(t, service("took-port", typ(v1.ServiceTypeNodePort), func(s *v1.Service) { s.Spec.Ports[0].NodePort = port }))
	s.Spec.Type, s.Spec.ExternalName = v1.ServiceTypeExternalName, "example.test"
	if s = f.update(t, s); s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) != 0 || s.Spec.IPFamilyPolicy != nil {
		t.Errorf("as ExternalName: %+v", s.Spec)
	}
	if f.recorded(t, address) {
		t.Error("the address was not released when the service became ExternalName")
	}
	s.Spec.Type, s.Spec.ExternalName = v1.ServiceTypeClusterIP, ""
	if s = f.update(t, s); s.Spec.ClusterIP == "" || !f.recorded(t, s.Spec.ClusterIP) {
		t.Errorf("back as ClusterIP: %+v", s.Spec)
	}
}

func testPutKeeps(t *testing.T, f *fixture) {
	s := f.create(t, service("kept", typ(v1.ServiceTypeNodePort)))
	again := service("kept", typ(v1.ServiceTypeNodePort))
	again.ResourceVersion = s.ResourceVersion
	again.Labels = map[string]string{"new": "1"}
	got := f.update(t, again)
	if got.Spec.ClusterIP != s.Spec.ClusterIP || got.Spec.Ports[0].NodePort != s.Spec.Ports[0].NodePort || got.Labels["new"] != "1" {
		t.Errorf("a PUT of the manifest changed %+v to %+v", s.Spec, got.Spec)
	}
	made, err := f.svc.Update(bg(), service("put-made"), metav1.UpdateOptions{})
	if err != nil || !f.recorded(t, made.Spec.ClusterIP) {
		t.Errorf("a PUT to a missing name gave %+v, %v", made, err)
	}
}

func testRollback(t *testing.T, f *fixture) {
	s := f.create(t, service("first"))
	_, err := f.svc.Create(bg(), service("first", ip("10.20.0.11")), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Fatalf("creating twice gave %v", err)
	}
	if f.recorded(t, "10.20.0.11") || !f.recorded(t, s.Spec.ClusterIP) {
		t.Error("a failed create must release what it took and nothing else")
	}
	// The first port is free, the second is not: the request must give the first back.
	f.create(t, service("holder", typ(v1.ServiceTypeNodePort), func(s *v1.Service) { s.Spec.Ports[0].NodePort = 30002 }))
	_, err = f.svc.Create(bg(), service("half", typ(v1.ServiceTypeNodePort), ip("10.20.0.12"), func(s *v1.Service) {
		s.Spec.Ports = []v1.ServicePort{{Name: "a", Port: 1, NodePort: 30003}, {Name: "b", Port: 2, NodePort: 30002}}
	}), metav1.CreateOptions{})
	refused(t, err, "provided port is already allocated")
	if f.recorded(t, "10.20.0.12") {
		t.Error("the address of a failed create stayed taken")
	}
	f.create(t, service("free", typ(v1.ServiceTypeNodePort), func(s *v1.Service) { s.Spec.Ports[0].NodePort = 30003 }))
	stale := s.DeepCopy()
	stale.ResourceVersion = "1"
	stale.Spec.Type = v1.ServiceTypeExternalName
	stale.Spec.ExternalName = "example.test"
	if _, err := f.svc.Update(bg(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) || !f.recorded(t, s.Spec.ClusterIP) {
		t.Errorf("a refused update gave %v and must not release the address", err)
	}
}

func testFinalizer(t *testing.T, f *fixture) {
	s := f.create(t, service("held", typ(v1.ServiceTypeNodePort), func(s *v1.Service) { s.Finalizers = []string{"example.test/hold"} }))
	f.remove(t, "held")
	if !f.recorded(t, s.Spec.ClusterIP) {
		t.Error("a service that still exists lost its address")
	}
	s, err := f.svc.Get(bg(), "held", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Finalizers = nil
	f.update(t, s)
	if _, err := f.svc.Get(bg(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) || f.recorded(t, s.Spec.ClusterIP) {
		t.Errorf("after the last finalizer: %v, address recorded %v", err, f.recorded(t, s.Spec.ClusterIP))
	}
	f.create(t, service("held-heir", typ(v1.ServiceTypeNodePort),
		func(h *v1.Service) { h.Spec.Ports[0].NodePort = s.Spec.Ports[0].NodePort }))
}

func testNoNodePorts(t *testing.T, f *fixture) {
	no := false
	s := f.create(t, service("bare-lb", typ(v1.ServiceTypeLoadBalancer),
		func(s *v1.Service) { s.Spec.AllocateLoadBalancerNodePorts = &no }))
	if n := s.Spec.Ports[0].NodePort; n != 0 {
		t.Errorf("got node port %d, asked for none", n)
	}
	s = f.create(t, service("turned-off", typ(v1.ServiceTypeLoadBalancer)))
	port := s.Spec.Ports[0].NodePort
	s.Spec.AllocateLoadBalancerNodePorts = &no
	if s = f.update(t, s); s.Spec.Ports[0].NodePort != port {
		t.Errorf("turning allocation off changed the port from %d to %d", port, s.Spec.Ports[0].NodePort)
	}
	s.Spec.Ports[0].NodePort = 0
	if s = f.update(t, s); s.Spec.Ports[0].NodePort != 0 {
		t.Errorf("a removed port came back as %d", s.Spec.Ports[0].NodePort)
	}
	f.create(t, service("port-heir", typ(v1.ServiceTypeNodePort), func(h *v1.Service) { h.Spec.Ports[0].NodePort = port }))
}

func testDryRun(t *testing.T, f *fixture) {
	s, err := f.svc.Create(bg(), service("dry", typ(v1.ServiceTypeNodePort)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.ClusterIP == "" || f.recorded(t, s.Spec.ClusterIP) {
		t.Errorf("a dry run gave %q and left a record: %v", s.Spec.ClusterIP, f.recorded(t, s.Spec.ClusterIP))
	}
	real := f.create(t, service("real"))
	if err := f.svc.Delete(bg(), "real", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil ||
		!f.recorded(t, real.Spec.ClusterIP) {
		t.Errorf("a dry delete released the address (%v)", err)
	}
}

func testConcurrent(t *testing.T, f *fixture) {
	var mu sync.Mutex
	ips, ports := map[string]string{}, map[int32]string{}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := fmt.Sprintf("many-%d", i)
			s, err := f.svc.Create(bg(), service(name, typ(v1.ServiceTypeNodePort)), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("creating %s: %v", name, err)
				return
			}
			if other, ok := ips[s.Spec.ClusterIP]; ok {
				t.Errorf("%s and %s both have %s", name, other, s.Spec.ClusterIP)
			}
			if other, ok := ports[s.Spec.Ports[0].NodePort]; ok {
				t.Errorf("%s and %s both have port %d", name, other, s.Spec.Ports[0].NodePort)
			}
			ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = name, name
		})
	}
	wg.Wait()
}

func testStatus(t *testing.T, f *fixture) {
	s := f.create(t, service("lb", typ(v1.ServiceTypeLoadBalancer)))
	s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	s.Spec.Ports[0].Port = 81
	s, err := f.svc.UpdateStatus(bg(), s, metav1.UpdateOptions{})
	if err != nil || s.Spec.Ports[0].Port != 80 || len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Fatalf("status write gave %+v, %v", s, err)
	}
	s.Spec.Type = v1.ServiceTypeClusterIP
	if s = f.update(t, s); len(s.Status.LoadBalancer.Ingress) != 0 {
		t.Errorf("a service that is no load balancer shows %v", s.Status.LoadBalancer)
	}
}

func testServiceRange(t *testing.T, f *fixture) {
	w, err := f.NetworkingV1().ServiceCIDRs().Watch(bg(), metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		t.Logf("service range: %s %+v", e.Type, e.Object)
		break
	}
	s, err := f.NetworkingV1().ServiceCIDRs().Get(bg(), "kubernetes", metav1.GetOptions{})
	if err != nil || len(s.Spec.CIDRs) != 2 {
		t.Errorf("service range is %+v, %v", s, err)
	}
}
