package endpoint

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func member(name, ip string, ready bool, port int32) *v1.Pod {
	s := v1.ConditionFalse
	if ready {
		s = v1.ConditionTrue
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec: v1.PodSpec{NodeName: "n",
			Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: v1.ProtocolTCP}}}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: ip, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: s}}}}
	if ip != "" {
		p.Status.PodIPs = []v1.PodIP{{IP: ip}}
	}
	return p
}

func show(subsets []v1.EndpointSubset) string {
	var out []string
	for _, s := range subsets {
		line := ""
		for _, a := range s.Addresses {
			line += "+" + a.IP
		}
		for _, a := range s.NotReadyAddresses {
			line += "-" + a.IP
		}
		for _, p := range s.Ports {
			line += fmt.Sprintf(":%d", p.Port)
		}
		out = append(out, line)
	}
	return strings.Join(out, " ")
}

func TestSubsets(t *testing.T) {
	svc := &v1.Service{Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP,
		TargetPort: intstr.FromString("http")}}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}}}
	dying := member("e", "10.0.0.5", true, 8080)
	dying.DeletionTimestamp = &metav1.Time{}
	done := member("f", "10.0.0.6", true, 8080)
	done.Status.Phase = v1.PodSucceeded
	pods := []*v1.Pod{member("b", "10.0.0.2", false, 8080), member("a", "10.0.0.1", true, 8080), member("c", "", true, 8080),
		member("d", "10.0.0.4", true, 9090), dying, done}
	got, _ := subsets(svc, pods)
	if want := "+10.0.0.1-10.0.0.2:8080 +10.0.0.4:9090"; show(got) != want {
		t.Errorf("%s, want %s", show(got), want)
	}
	svc.Spec.PublishNotReadyAddresses = true
	got, _ = subsets(svc, pods[:2])
	if want := "+10.0.0.1+10.0.0.2:8080"; show(got) != want {
		t.Errorf("not ready published: %s, want %s", show(got), want)
	}
	var many []*v1.Pod
	for i := range maxLegacy + 5 {
		many = append(many, member(fmt.Sprint(i), fmt.Sprintf("10.1.%d.%d", i/250, i%250), true, 80))
	}
	if got, cut := subsets(svc, many); !cut || len(got[0].Addresses) != maxLegacy {
		t.Errorf("truncated %v at %d", cut, len(got[0].Addresses))
	}
}

func TestMirrorIsStable(t *testing.T) {
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}}
	ep := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "u"}, Subsets: []v1.EndpointSubset{{
		Addresses: []v1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "fd00::1"}}, NotReadyAddresses: []v1.EndpointAddress{{IP: "10.0.0.2"}},
		Ports: []v1.EndpointPort{{Port: 80}}}}}
	if !mirrored(svc, ep) {
		t.Fatal("hand-written endpoints must be mirrored")
	}
	first := mirror(svc, ep)
	if len(first) != 2 || len(first[0].Endpoints) != 2 || len(first[1].Endpoints) != 1 {
		t.Fatalf("%d slices", len(first))
	}
	create, update, remove := match(mirror(svc, ep), first)
	if len(create)+len(update)+len(remove) != 0 {
		t.Errorf("an unchanged mirror plans %d, %d, %d writes", len(create), len(update), len(remove))
	}
	ep.Subsets[0].Addresses = ep.Subsets[0].Addresses[:1]
	create, update, remove = match(mirror(svc, ep), first)
	if len(create) != 0 || len(update) != 0 || len(remove) != 1 {
		t.Errorf("a dropped family plans %d, %d, %d writes, want one delete", len(create), len(update), len(remove))
	}
	svc.Spec.Selector = map[string]string{"a": "b"}
	if mirrored(svc, ep) {
		t.Error("a service with a selector is not mirrored")
	}
	svc.Spec.Selector, ep.Labels = nil, map[string]string{discoveryv1.LabelSkipMirror: "true"}
	if mirrored(svc, ep) {
		t.Error("skip-mirror is ignored")
	}
	ep.Labels, ep.Annotations = nil, map[string]string{leaderAnnotation: ""}
	if mirrored(svc, ep) {
		t.Error("a leader lock is mirrored")
	}
}
