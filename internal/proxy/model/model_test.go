package model

import (
	"fmt"
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mirror is the kernel in small: rows by set and key. It fails on what the
// kernel refuses: deleting what is not there, adding what is.
type mirror map[string]map[string]string

func (r mirror) apply(t *testing.T, c *Changes) {
	t.Helper()
	for _, set := range c.Ordered() {
		s, d := set.Shape(V4), c.Sets[set]
		if r[s.Name] == nil {
			r[s.Name] = map[string]string{}
		}
		was := d.Was
		for b := d.Del; len(b) > 0; b = b[s.DelStride():] {
			held, ok := r[s.Name][string(b[:s.Key])]
			if !ok {
				t.Fatalf("deleting a row of %s that is not there: %x", s.Name, b[:s.Key])
			}
			if s.Value > 0 && held != string(was[:s.Value]) {
				t.Fatalf("deleting row %x of %s: its value was %x, not %x", b[:s.Key], s.Name, held, was[:s.Value])
			}
			was = was[s.Value:]
			delete(r[s.Name], string(b[:s.Key]))
		}
		for b := d.Add; len(b) > 0; b = b[s.Stride():] {
			if _, ok := r[s.Name][string(b[:s.Key])]; ok {
				t.Fatalf("adding a row of %s twice: %x", s.Name, b[:s.Key])
			}
			r[s.Name][string(b[:s.Key])] = string(b[s.Key:s.Stride()])
		}
	}
}

// sorted forgets which endpoint has which index of a pool, but not which
// indexes there are, and sets without rows.
func (r mirror) sorted() mirror {
	out := mirror{}
	for name, rows := range r {
		if len(rows) == 0 {
			continue
		}
		out[name] = rows
		if name != "endpoints" && name != "nodeport-endpoints" && name != "sticky-picks" {
			continue
		}
		out[name] = map[string]string{}
		for k, v := range rows {
			vip, index := k[:len(k)-4], k[len(k)-4:]
			out[name][vip+"index"+index] = ""
			out[name][vip+"pool"+index[3:]+v] = ""
		}
	}
	return out
}

func randomService(r *rand.Rand, i int) *corev1.Service {
	pick := func(n int) bool { return r.Intn(n) == 0 }
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("s", i)}, Spec: corev1.ServiceSpec{
		ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), Type: []corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer",
			"ExternalName"}[r.Intn(4)]}}
	s.CreationTimestamp = metav1.Unix(int64(i%3), 0)
	for p := range 1 + r.Intn(2) {
		sp := corev1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(80 + p), Protocol: []corev1.Protocol{"TCP", "UDP"}[r.Intn(2)]}
		if s.Spec.Type != "ClusterIP" {
			sp.NodePort = int32(30000 + r.Intn(4)) // few, so that they clash and move
		}
		s.Spec.Ports = append(s.Spec.Ports, sp)
	}
	if pick(3) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if pick(3) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if l := corev1.ServiceInternalTrafficPolicyLocal; pick(3) {
		s.Spec.InternalTrafficPolicy = &l
	}
	if pick(3) {
		s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", r.Intn(3))}
	}
	if pick(2) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", r.Intn(3))}}
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", fmt.Sprintf("192.0.2.%d/32", r.Intn(3)), " 198.51.100.0/25"}[:r.Intn(4)]
	}
	if pick(8) {
		s.Labels = map[string]string{labelProxyName: "other"}
	}
	return s
}

func randomSlice(r *rand.Rand, svc, i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%d-%d", svc, i),
		Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", svc)}}, AddressType: discoveryv1.AddressTypeIPv4}
	if r.Intn(8) == 0 {
		s.Labels[labelHeadless] = ""
	}
	for p := range 2 {
		for _, proto := range []corev1.Protocol{"TCP", "UDP"} {
			name, port := fmt.Sprint("p", p), int32(8080+p)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
		}
	}
	for range r.Intn(6) {
		ready, term := r.Intn(3) > 0, r.Intn(3) == 0
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", r.Intn(10))},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &term}}
		node := []string{"here", "there"}[r.Intn(2)]
		e.NodeName = &node
		if r.Intn(3) > 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: []string{"a", "b"}[r.Intn(2)]}}}
			if r.Intn(3) > 0 {
				e.Hints.ForNodes = []discoveryv1.ForNode{{Name: node}}
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// TestIncrementalEqualsScratch changes a cluster at random and compares the
// rows that the changes add up to with those of a Model that saw only the end.
func TestIncrementalEqualsScratch(t *testing.T) {
	for seed := range int64(60) {
		r := rand.New(rand.NewSource(seed))
		m, kernel := New(Config{Family: V4, NodeName: "here"}), mirror{}
		services, slcs, zone := map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, ""
		for step := range 150 {
			i := r.Intn(6)
			switch r.Intn(6) {
			case 0, 1:
				s := randomService(r, i)
				services[s.Name] = s
				m.SetService(s)
			case 2:
				delete(services, fmt.Sprint("s", i))
				m.DeleteService(Name{"ns", fmt.Sprint("s", i)})
			case 3, 4:
				s := randomSlice(r, i, r.Intn(3))
				slcs[s.Name] = s
				m.SetSlice(s)
			case 5:
				if s := slcs[fmt.Sprintf("s%d-0", i)]; s != nil {
					delete(slcs, s.Name)
					m.DeleteSlice(s)
				}
				if r.Intn(4) == 0 {
					zone = []string{"a", "b", ""}[r.Intn(3)]
					m.SetNode(zone, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
				}
			}
			if r.Intn(3) > 0 {
				continue // several changes come to one Commit
			}
			kernel.apply(t, m.Commit())
			for _, p := range m.services {
				for _, port := range p.ports {
					if len(port.pools[0].diff)+len(port.gone) > 0 {
						t.Fatalf("seed %d step %d: %s keeps changes of the last commit", seed, step, port.key)
					}
				}
			}
			scratch, want := New(Config{Family: V4, NodeName: "here"}), mirror{}
			scratch.SetNode(m.zone, m.nodeIPs)
			for _, s := range services {
				scratch.SetService(s)
			}
			for _, s := range slcs {
				scratch.SetSlice(s)
			}
			want.apply(t, scratch.Commit())
			a, b := kernel.sorted(), want.sorted()
			for name := range b {
				if !maps.Equal(a[name], b[name]) {
					t.Fatalf("seed %d step %d: %s differs:\nincremental %x\nscratch     %x", seed, step, name, a[name], b[name])
				}
			}
			if len(a) != len(b) {
				t.Fatalf("seed %d step %d: %d sets with rows, want %d", seed, step, len(a), len(b))
			}
		}
	}
}

// TestSlotsMoveFew checks that one endpoint more or less writes at most two
// indexes, and that before remembers the order.
func TestSlotsMoveFew(t *testing.T) {
	for size := range 70 {
		for gone := range size {
			var s slots
			var all []netip.AddrPort
			for i := range size {
				all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))
			}
			s.change(nil, slices.Clone(all))
			s.diff = nil
			s.change(all[gone:gone+1], nil)
			s.settle()
			if len(s.diff) > 2 || len(s.at) != size-1 || slices.Contains(s.at, all[gone]) {
				t.Fatalf("taking endpoint %d of %d away: %v", gone, size, s.diff)
			}
			if was := s.before(); !slices.Equal(was, all) {
				t.Fatalf("before taking %d away: %v", gone, was)
			}
		}
	}
}

// TestClassNames checks that a class can be read back from its name.
func TestClassNames(t *testing.T) {
	for _, c := range []Class{{Kind: Reject}, {Kind: Drop, NodePort: true, Ranges: true}, {External: true, LocalPolicy: true, Cluster: 4,
		Local: 1, Timeout: 10800}, {Cluster: 64}, {Local: 2, LocalPolicy: true}} {
		if got, ok := ClassByName(c.Name()); !ok || got != c {
			t.Errorf("%s: got %+v, want %+v", c.Name(), got, c)
		}
	}
}
