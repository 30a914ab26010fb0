package model

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestMoreEndpointsThanNumbers: a Service with affinity has more endpoints than
// can be told apart. Those without a number have no rows of affinity, all others
// have theirs, and all rows go with the endpoints.
func TestMoreEndpointsThanNumbers(t *testing.T) {
	m, kernel := New(Config{Family: V4, NodeName: "here"}), mirror{}
	m.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1",
		SessionAffinity: corev1.ServiceAffinityClientIP, Ports: []corev1.ServicePort{{Port: 80}}}})
	slice := func(n int) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80))}}}
		for i := range n {
			s.Endpoints = append(s.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()}})
		}
		return s
	}
	for _, n := range []int{100, maxStuck + 200, maxStuck - 3, maxStuck + 7, 3, 0} {
		m.SetSlice(slice(n))
		kernel.apply(t, m.Commit())
		numbered := len(kernel["sticky-endpoints"])
		if most := min(n, maxStuck); numbered > most || numbered < most-200 {
			t.Errorf("%d endpoints: %d have numbers", n, numbered)
		}
		if len(kernel["endpoints"]) != n || len(kernel["sticky-picks"]) != numbered {
			t.Errorf("%d endpoints: %d rows, %d to draw, %d numbered", n, len(kernel["endpoints"]), len(kernel["sticky-picks"]), numbered)
		}
		at := map[string]string{}
		for key, a := range kernel["endpoints"] {
			at[key[len(key)-4:]] = a
		}
		for key, number := range kernel["sticky-picks"] {
			if got, want := kernel["sticky-endpoints"][number], at[key[4:]]; got != want || got == "" {
				t.Fatalf("%d endpoints: index %x leads to %x, not to %x", n, key[4:], got, want)
			}
		}
	}
}

// TestNumbersOfPorts: every port has a number of its own, above StickyFlag, also
// when the hashes of their names fall together.
func TestNumbersOfPorts(t *testing.T) {
	m, seen := New(Config{Family: V4, NodeName: "here"}), map[uint32]bool{}
	const ports = 5000 // of 131,071 numbers: hashes do fall together
	hashes := map[uint32]bool{}
	for i := range ports {
		name := fmt.Sprint("s", i)
		m.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(),
				SessionAffinity: corev1.ServiceAffinityClientIP, Ports: []corev1.ServicePort{{Port: 80}}}})
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}}
		m.SetSlice(s)
		hashes[hash32(portKey{Name{"ns", name}, "", corev1.ProtocolTCP}.String())%maxSticky] = true
	}
	kernel := mirror{}
	kernel.apply(t, m.Commit())
	for _, v := range kernel["sticky"] {
		n := binary.NativeEndian.Uint32([]byte(v))
		if seen[n] || n <= StickyFlag || n&^StickyPort != 0 {
			t.Fatalf("number %x", n)
		}
		seen[n] = true
	}
	if len(seen) != ports || len(hashes) == ports {
		t.Errorf("%d numbers, %d hashes", len(seen), len(hashes))
	}
	// A restart finds the same ones, in whatever order the Services come.
	again := New(Config{Family: V4, NodeName: "here"})
	for _, table := range SeedTables {
		s := table.Shape(V4)
		for k, v := range kernel[s.Name] {
			again.Seed(table, []byte(k), []byte(v))
		}
	}
	for name, v := range m.services {
		if name.Name != "s17" {
			again.SetService(v.spec)
		}
		for _, s := range v.slices {
			again.SetSlice(s)
		}
	}
	later := mirror{}
	later.apply(t, again.Commit())
	if len(later["sticky"]) != ports-1 {
		t.Fatalf("%d rows", len(later["sticky"]))
	}
	for _, set := range []string{"sticky", "sticky-picks", "sticky-endpoints"} {
		for k, v := range later[set] {
			if kernel[set][k] != v {
				t.Fatalf("%s: %x leads to %x after a restart, was %x", set, k, v, kernel[set][k])
			}
		}
	}
}
