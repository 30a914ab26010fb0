package registry_test

import (
	"reflect"
	"strings"
	"testing"

	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	resource "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
)

const nameKey, namespaceKey = "metadata.name", "metadata.namespace"

// selectable is what every kind can do for field selectors.
type selectable interface {
	registry.Resource
	GetAttrs(runtime.Object) (labels.Set, fields.Set, error)
	Selectable() (keys []string, aliases map[string]string)
}

func all() map[schema.GroupVersionKind]selectable {
	out := map[schema.GroupVersionKind]selectable{}
	for _, k := range kinds.All() {
		out[k.Info().GroupVersion.WithKind(k.Info().Kind)] = k.(selectable)
	}
	return out
}

func registered(t *testing.T) *runtime.Scheme {
	t.Helper()
	return scheme.Shared().Scheme
}

// A selector goes through both halves: the scheme turns its keys into the
// canonical ones, the attributes decide.
func TestSelect(t *testing.T) {
	s := registered(t)
	about := v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "web", UID: "u", APIVersion: "v1", ResourceVersion: "7",
		FieldPath: "spec.containers{c}"}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "n"}
	pod := &v1.Pod{ObjectMeta: meta, Spec: v1.PodSpec{NodeName: "a", RestartPolicy: "Never", SchedulerName: "s", ServiceAccountName: "sa",
		HostNetwork: true},
		Status: v1.PodStatus{Phase: "Running", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}, NominatedNodeName: "b"}}
	event := &v1.Event{ObjectMeta: meta, InvolvedObject: about, Reason: "Killing", Type: "Normal", ReportingController: "kubelet"}
	node := "a"
	for _, c := range []struct {
		obj      runtime.Object
		gvk      schema.GroupVersionKind
		selector string
		want     bool
	}{
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "spec.nodeName=a,spec.host=a,spec.restartPolicy=Never,spec.schedulerName=s", true},
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "spec.serviceAccountName=sa,spec.hostNetwork=true,status.phase!=Failed", true},
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "status.podIP=10.0.0.1,status.nominatedNodeName=b,metadata.namespace=ns", true},
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "spec.nodeName=", false},
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "status.podIPs=10.0.0.1", false},
		{pod, v1.SchemeGroupVersion.WithKind("Pod"), "status.podIPs=", true},
		{&v1.Node{ObjectMeta: meta}, v1.SchemeGroupVersion.WithKind("Node"), "spec.unschedulable=false", true},
		{&v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{ClusterIP: "None", Type: "ClusterIP"}},
			v1.SchemeGroupVersion.WithKind("Service"), "spec.clusterIP!=None", false},
		{&v1.Service{ObjectMeta: meta, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1", Type: "NodePort"}},
			v1.SchemeGroupVersion.WithKind("Service"), "spec.clusterIP!=None,spec.type=NodePort", true},
		{&v1.Namespace{Status: v1.NamespaceStatus{Phase: "Active"}}, v1.SchemeGroupVersion.WithKind("Namespace"), "status.phase=Active",
			true},
		{&v1.Secret{Type: "Opaque"}, v1.SchemeGroupVersion.WithKind("Secret"), "type=Opaque", true},
		{&v1.ReplicationController{Status: v1.ReplicationControllerStatus{Replicas: 3}},
			v1.SchemeGroupVersion.WithKind("ReplicationController"), "status.replicas=3", true},
		{&batch.Job{Status: batch.JobStatus{Succeeded: 2}}, batch.SchemeGroupVersion.WithKind("Job"), "status.successful=2", true},
		{&certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{SignerName: "x/y"}},
			certificates.SchemeGroupVersion.WithKind("CertificateSigningRequest"), "spec.signerName=x/y", true},
		{&certificates.PodCertificateRequest{Spec: certificates.PodCertificateRequestSpec{NodeName: "n1"}},
			certificates.SchemeGroupVersion.WithKind("PodCertificateRequest"), "spec.nodeName=n1", true},
		{&certificates.PodCertificateRequest{Spec: certificates.PodCertificateRequestSpec{NodeName: "n1"}},
			certificates.SchemeGroupVersion.WithKind("PodCertificateRequest"), "spec.nodeName=n2", false},
		{&resource.ResourceSlice{Spec: resource.ResourceSliceSpec{NodeName: &node, Driver: "d"}},
			resource.SchemeGroupVersion.WithKind("ResourceSlice"), "spec.nodeName=a,spec.driver=d", true},
		{&resource.ResourceSlice{}, resource.SchemeGroupVersion.WithKind("ResourceSlice"), "spec.nodeName=", true},
		{event, v1.SchemeGroupVersion.WithKind("Event"),
			"involvedObject.kind=Pod,involvedObject.uid=u,involvedObject.fieldPath=spec.containers{c},source=kubelet," +
				"reportingComponent=kubelet", true},
		{event, events.SchemeGroupVersion.WithKind("Event"),
			"regarding.kind=Pod,regarding.name=web,reportingController=kubelet,reason=Killing,type=Normal", true},
		{event, events.SchemeGroupVersion.WithKind("Event"), "regarding.kind=Node", false},
	} {
		t.Run(c.gvk.Kind+"/"+c.selector, func(t *testing.T) {
			parsed, err := fields.ParseAndTransformSelector(c.selector, func(k, v string) (string, string, error) {
				return s.ConvertFieldLabel(c.gvk, k, v)
			})
			if err != nil {
				t.Fatal(err)
			}
			_, set, err := all()[c.gvk].GetAttrs(c.obj)
			if err != nil {
				t.Fatal(err)
			}
			if got := parsed.Matches(set); got != c.want {
				t.Errorf("matches %v, want %v, fields %v", got, c.want, set)
			}
		})
	}
}

func TestUnsupportedKey(t *testing.T) {
	s := registered(t)
	for gvk := range all() {
		_, _, err := s.ConvertFieldLabel(gvk, "spec.color", "red")
		if err == nil || !strings.Contains(err.Error(), "spec.color") {
			t.Errorf("%s: got error %v", gvk, err)
		}
	}
	if _, _, err := s.ConvertFieldLabel(v1.SchemeGroupVersion.WithKind("ConfigMap"), "data", ""); err == nil {
		t.Error("a kind without a row accepts a key it cannot answer")
	}
}

// Each accepted key must be one that the attributes fill, and the other way
// round, or a selector silently matches nothing.
func TestKeysAgree(t *testing.T) {
	s := registered(t)
	for gvk, k := range all() {
		keys, aliases := k.Selectable()
		_, set, err := k.GetAttrs(reflect.New(k.Info().Type.Elem()).Interface().(runtime.Object))
		if err != nil {
			t.Fatal(err)
		}
		sent := map[string]bool{nameKey: true, namespaceKey: true}
		for _, key := range keys {
			sent[key] = true
			if _, filled := set[key]; !filled && key != "status.podIPs" {
				t.Errorf("%s: key %s is accepted and never filled", gvk, key)
			}
		}
		for old := range aliases {
			key, _, err := s.ConvertFieldLabel(gvk, old, "")
			if err != nil {
				t.Errorf("%s: alias %s: %v", gvk, old, err)
			}
			sent[key] = true
			if _, filled := set[key]; !filled {
				t.Errorf("%s: alias %s stands for %s, which is never filled", gvk, old, key)
			}
		}
		for key := range set {
			if !sent[key] && !(gvk.Group == events.GroupName && key == "source") {
				t.Errorf("%s: key %s is filled and cannot be asked for", gvk, key)
			}
		}
	}
}

func TestAttrsOfWrongKind(t *testing.T) {
	pods, maps := all()[v1.SchemeGroupVersion.WithKind("Pod")], all()[v1.SchemeGroupVersion.WithKind("ConfigMap")]
	if _, _, err := pods.GetAttrs(&v1.Node{}); err == nil {
		t.Error("a node passed for a pod")
	}
	if _, _, err := maps.GetAttrs(&metav1.Status{}); err == nil {
		t.Error("an object without metadata passed")
	}
	l, f, err := maps.GetAttrs(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}})
	if err != nil || l["a"] != "b" || f[nameKey] != "n" {
		t.Errorf("got %v %v %v", l, f, err)
	}
}

func BenchmarkPodAttrs(b *testing.B) {
	b.ReportAllocs()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "n"}}
	pods := all()[v1.SchemeGroupVersion.WithKind("Pod")]
	for b.Loop() {
		if _, _, err := pods.GetAttrs(pod); err != nil {
			b.Fatal(err)
		}
	}
}
