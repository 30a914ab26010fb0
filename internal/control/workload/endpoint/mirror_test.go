package endpoint

import (
	"fmt"
	"log/slog"
	"maps"
	stdslices "slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/controller"
)

// TestAddressFor: the pod's address of the Service's first family.
func TestAddressFor(t *testing.T) {
	pod := &v1.Pod{Status: v1.PodStatus{PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}}
	for _, c := range []struct {
		why  string
		svc  v1.ServiceSpec
		pod  *v1.Pod
		want string
	}{
		{"IPv4", v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}, pod, "10.0.0.1"},
		{"IPv6", v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv6Protocol}}, pod, "fd00::1"},
		{"the first of two", v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}}, pod, "fd00::1"},
		{"by cluster IP", v1.ServiceSpec{ClusterIP: "fd00:96::1"}, pod, "fd00::1"},
		{"headless and old", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}, pod, "10.0.0.1"},
		{"pod lacks the family", v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv6Protocol}},
			&v1.Pod{Status: v1.PodStatus{PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}}}, ""},
	} {
		if got := addressFor(&v1.Service{Spec: c.svc}, c.pod); got != c.want {
			t.Errorf("%s: %q, want %q", c.why, got, c.want)
		}
	}
}

// TestPortsOfAPod: numbers are everybody's, names are those that have them.
func TestPortsOfAPod(t *testing.T) {
	pod := member("a", "10.0.0.1", true, 8080)
	port := func(name string, target intstr.IntOrString) v1.ServicePort {
		return v1.ServicePort{Name: name, Port: 80, Protocol: v1.ProtocolTCP, TargetPort: target}
	}
	for _, c := range []struct {
		why   string
		ports []v1.ServicePort
		want  string
	}{
		{"none", nil, ""},
		{"number", []v1.ServicePort{port("a", intstr.FromInt32(9090))}, "a:9090"},
		{"name", []v1.ServicePort{port("a", intstr.FromString("http"))}, "a:8080"},
		{"a name it lacks", []v1.ServicePort{port("a", intstr.FromString("smtp")), port("b", intstr.FromString("http"))}, "b:8080"},
	} {
		var got []string
		for _, p := range portsFor(&v1.Service{Spec: v1.ServiceSpec{Ports: c.ports}}, pod) {
			got = append(got, fmt.Sprintf("%s:%d", p.Name, p.Port))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.why, got, c.want)
		}
	}
	// A headless Service without ports has addresses all the same.
	svc := &v1.Service{Spec: v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}}
	if got, _ := subsets(svc, []*v1.Pod{pod}); show(got) != "+10.0.0.1" {
		t.Errorf("headless without ports: %s", show(got))
	}
}

// TestReadyPodsStay: where not all fit, those that receive traffic stay,
// whatever their names.
func TestReadyPodsStay(t *testing.T) {
	svc := &v1.Service{Spec: v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}}
	var pods []*v1.Pod
	for i := range maxLegacy {
		pods = append(pods, member(fmt.Sprintf("a-%d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250), false, 80))
	}
	pods = append(pods, member("z", "10.2.0.1", true, 80))
	got, cut := subsets(svc, pods)
	if !cut || len(got) != 1 || len(got[0].Addresses) != 1 || got[0].Addresses[0].IP != "10.2.0.1" ||
		len(got[0].NotReadyAddresses) != maxLegacy-1 {
		t.Errorf("truncated %v: %d ready and %d not ready", cut, len(got[0].Addresses), len(got[0].NotReadyAddresses))
	}
	if _, cut := subsets(svc, pods[:maxLegacy]); cut {
		t.Error("as many as fit count as truncated")
	}
}

func endpointsOf(subsets ...v1.EndpointSubset) *v1.Endpoints {
	return &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "u"}, Subsets: subsets}
}

func addresses(from, n int) (out []v1.EndpointAddress) {
	for i := from; i < from+n; i++ {
		out = append(out, v1.EndpointAddress{IP: fmt.Sprintf("10.1.%d.%d", i/250, i%250)})
	}
	return out
}

var mirroredService = &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}}

// TestMirroredSlices: what of hand-written Endpoints reaches slices.
func TestMirroredSlices(t *testing.T) {
	for _, c := range []struct {
		why  string
		sub  v1.EndpointSubset
		want []string // family and number of ready and of other endpoints, per slice
	}{
		{"a hundred per slice", v1.EndpointSubset{Addresses: addresses(0, 101)}, []string{"IPv4 100 0", "IPv4 1 0"}},
		{"not ready ones follow", v1.EndpointSubset{Addresses: addresses(0, 99), NotReadyAddresses: addresses(99, 2)},
			[]string{"IPv4 99 1", "IPv4 0 1"}},
		{"a thousand per subset, ready first", v1.EndpointSubset{Addresses: addresses(0, 950), NotReadyAddresses: addresses(950, 100)},
			[]string{"IPv4 100 0", "IPv4 100 0", "IPv4 100 0", "IPv4 100 0", "IPv4 100 0", "IPv4 100 0", "IPv4 100 0", "IPv4 100 0",
				"IPv4 100 0", "IPv4 50 50"}},
		{"no address of a name", v1.EndpointSubset{Addresses: []v1.EndpointAddress{{IP: "example.com"}}}, nil},
		{"empty", v1.EndpointSubset{}, nil},
	} {
		var got []string
		for _, s := range mirror(mirroredService, endpointsOf(c.sub)) {
			ready := 0
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					ready++
				}
			}
			got = append(got, fmt.Sprintf("%s %d %d", s.AddressType, ready, len(s.Endpoints)-ready))
		}
		if !stdslices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.why, got, c.want)
		}
	}
}

// TestMirroredMetadata: labels and annotations are the Endpoints' own, but for
// those that speak of another object.
func TestMirroredMetadata(t *testing.T) {
	ep := endpointsOf(v1.EndpointSubset{Addresses: addresses(0, 1)})
	ep.Labels = map[string]string{"a": "1", discoveryv1.LabelManagedBy: "me"}
	ep.Annotations = map[string]string{"b": "2", v1.LastAppliedConfigAnnotation: "{}", v1.EndpointsLastChangeTriggerTime: "now"}
	s := mirror(mirroredService, ep)[0]
	if !maps.Equal(s.Labels, map[string]string{"a": "1", discoveryv1.LabelManagedBy: mirrorBy, discoveryv1.LabelServiceName: "s"}) ||
		!maps.Equal(s.Annotations, map[string]string{"b": "2"}) || !metav1.IsControlledBy(s, ep) ||
		ep.Labels[discoveryv1.LabelServiceName] != "" {
		t.Errorf("slice %+v of %+v", s.ObjectMeta, ep.ObjectMeta)
	}
}

// TestMirrorFollowsMetadata: a label or annotation that is changed or removed
// at the Endpoints is so in the slices, which are then as they should be:
// nothing is left to write.
func TestMirrorFollowsMetadata(t *testing.T) {
	before := endpointsOf(v1.EndpointSubset{Addresses: addresses(0, 1)})
	before.Labels, before.Annotations = map[string]string{"gone": "1", "stays": "1"}, map[string]string{"gone": "1", "changes": "1"}
	after := before.DeepCopy()
	after.Labels, after.Annotations = map[string]string{"stays": "1"}, map[string]string{"changes": "2"}
	for why, ep := range map[string]*v1.Endpoints{"labels": {ObjectMeta: after.ObjectMeta}, "annotations": {ObjectMeta: after.ObjectMeta}} {
		ep = ep.DeepCopy()
		ep.Subsets = before.Subsets
		if why == "labels" {
			ep.Annotations = before.Annotations
		} else {
			ep.Labels = before.Labels
		}
		have := mirror(mirroredService, before)
		have[0].Name = "s-1"
		client := fake.NewSimpleClientset(have[0])
		e := controller.Env{Client: client, Log: slog.New(slog.DiscardHandler)}
		if err := writeMirror(t.Context(), e, "ns", mirror(mirroredService, ep), have); err != nil {
			t.Fatal(err)
		}
		got, err := client.DiscoveryV1().EndpointSlices("ns").Get(t.Context(), "s-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := mirror(mirroredService, ep)
		if !maps.Equal(got.Labels, want[0].Labels) || !maps.Equal(got.Annotations, want[0].Annotations) {
			t.Errorf("%s: %v and %v, want %v and %v", why, got.Labels, got.Annotations, want[0].Labels, want[0].Annotations)
		}
		if create, update, remove := match(want, []*discoveryv1.EndpointSlice{got}); len(create)+len(update)+len(remove) > 0 {
			t.Errorf("%s: %d, %d, %d writes are left", why, len(create), len(update), len(remove))
		}
	}
}

// TestMatchIsComplete: whatever is there, the writes that match plans lead to
// what is wanted, and slices that are right are not written.
func TestMatchIsComplete(t *testing.T) {
	draw := func(r *rapid.T, what string) (out []*discoveryv1.EndpointSlice) {
		for i := range rapid.IntRange(0, 6).Draw(r, what) {
			ip := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}).Draw(r, "ip")
			family := rapid.SampledFrom([]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}).Draw(r,
				"family")
			s := mirrorSlice(mirroredService, endpointsOf(), family, []discoveryv1.Endpoint{{Addresses: []string{ip}}}, nil)
			s.Name = fmt.Sprint(i)
			out = append(out, s)
		}
		return out
	}
	text := func(s *discoveryv1.EndpointSlice) string { return string(s.AddressType) + s.Endpoints[0].Addresses[0] }
	rapid.Check(t, func(r *rapid.T) {
		want, have := draw(r, "want"), draw(r, "have")
		create, update, remove := match(want, have)
		var got, wanted []string
		for _, h := range have {
			if w := update[h]; w != nil {
				if text(w) == text(h) || w.AddressType != h.AddressType {
					r.Fatalf("%s becomes %s", text(h), text(w))
				}
				got = append(got, text(w))
			} else if !stdslices.Contains(remove, h) {
				got = append(got, text(h))
			}
		}
		for _, s := range create {
			got = append(got, text(s))
		}
		for _, s := range want {
			wanted = append(wanted, text(s))
		}
		stdslices.Sort(got)
		stdslices.Sort(wanted)
		if !stdslices.Equal(got, wanted) {
			r.Fatalf("%v, want %v", got, wanted)
		}
		if len(create) > 0 && stdslices.ContainsFunc(remove,
			func(s *discoveryv1.EndpointSlice) bool { return s.AddressType == create[0].AddressType }) {
			r.Fatal("one is created and one of its family deleted")
		}
	})
}
