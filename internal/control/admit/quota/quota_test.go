package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func text(l corev1.ResourceList) string {
	var out []string
	for name, q := range l {
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func container(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func podWith(change func(*corev1.Pod), containers ...corev1.Container) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Containers: containers}}
	if change != nil {
		change(pod)
	}
	return pod
}

func TestUsage(t *testing.T) {
	big := container("c", list("cpu", "1", "memory", "1Gi", "hugepages-2Mi", "4Mi", "gpus.example.com/g", "2", "ephemeral-storage", "5Gi"),
		list("cpu", "2", "gpus.example.com/g", "2"))
	for _, c := range []struct {
		name, got, want string
	}{
		{"pod", text(podUsage(podWith(func(p *corev1.Pod) { p.Spec.Overhead = list("cpu", "100m") }, big), now)),
			"count/pods=1 cpu=1100m ephemeral-storage=5Gi hugepages-2Mi=4Mi limits.cpu=2100m memory=1Gi pods=1 requests.cpu=1100m " +
				"requests.ephemeral-storage=5Gi requests.gpus.example.com/g=2 requests.hugepages-2Mi=4Mi requests.memory=1Gi"},
		{"finished pod", text(podUsage(podWith(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, big), now)), "count/pods=1"},
		{"pod long past its grace", text(podUsage(podWith(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-time.Minute)}, ptr.To[int64](30)
		}, big), now)), "count/pods=1"},
		{"pod within its grace", text(podUsage(podWith(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-10 * time.Second)}, ptr.To[int64](30)
		}, container("c", nil, nil)), now)), "count/pods=1 pods=1"},
		{"cluster IP service",
			text(ServiceUsage(&corev1.Service{Spec: corev1.ServiceSpec{Type: "ClusterIP", Ports: make([]corev1.ServicePort, 2)}})),
			"count/services=1 services.loadbalancers=0 services.nodeports=0 services=1"},
		{"node port service", text(ServiceUsage(&corev1.Service{Spec: corev1.ServiceSpec{Type: "NodePort", Ports: make([]corev1.ServicePort,
			2)}})),
			"count/services=1 services.loadbalancers=0 services.nodeports=2 services=1"},
		{"load balancer", text(ServiceUsage(&corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", Ports: make([]corev1.ServicePort,
			2)}})),
			"count/services=1 services.loadbalancers=1 services.nodeports=2 services=1"},
		{"load balancer without node ports",
			text(ServiceUsage(&corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", AllocateLoadBalancerNodePorts: ptr.To(false),
				Ports: []corev1.ServicePort{{}, {NodePort: 30000}}}})),
			"count/services=1 services.loadbalancers=1 services.nodeports=1 services=1"},
		{"claim", text(ClaimUsage(&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("fast"),
			Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "10Gi")}}})),
			"count/persistentvolumeclaims=1 fast.storageclass.storage.k8s.io/persistentvolumeclaims=1 " +
				"fast.storageclass.storage.k8s.io/requests.storage=10Gi persistentvolumeclaims=1 requests.storage=10Gi"},
		{"devices", text(deviceUsage(
			&resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{
				Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
					{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: "ExactCount", Count: 2}},
					{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic", AllocationMode: "All"}},
					{FirstAvailable: []resourcev1.DeviceSubRequest{{DeviceClassName: "gpu", AllocationMode: "ExactCount", Count: 1},
						{DeviceClassName: "gpu", AllocationMode: "ExactCount", Count: 3},
						{DeviceClassName: "slow", AllocationMode: "ExactCount", Count: 4}}},
				}}}})),
			"count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=5 nic.deviceclass.resource.k8s.io/devices=32 " +
				"slow.deviceclass.resource.k8s.io/devices=4"},
		{"shrinking claim", text(
			ClaimUsage(&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: list("storage", "10Gi")}}, Status: corev1.PersistentVolumeClaimStatus{AllocatedResources: list("storage",
				"20Gi")}})),
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=20Gi"},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, c.got, c.want)
		}
	}
}

func TestScopes(t *testing.T) {
	plain := podWith(nil, container("c", nil, nil))
	for _, c := range []struct {
		scope corev1.ScopedResourceSelectorRequirement
		pod   *corev1.Pod
		want  bool
	}{
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "Terminating"}, plain, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "NotTerminating"}, plain, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "Terminating"},
			podWith(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }), true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "BestEffort"}, plain, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "NotBestEffort"}, plain, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "BestEffort"}, podWith(nil, container("c", nil, list("memory", "1"))), false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "In", Values: []string{"high"}},
			podWith(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }), true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "NotIn", Values: []string{"high"}},
			podWith(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }), false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "Exists"}, plain, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "DoesNotExist"}, plain, true},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "CrossNamespacePodAffinity"}, plain, false},
		{corev1.ScopedResourceSelectorRequirement{ScopeName: "CrossNamespacePodAffinity"}, podWith(func(p *corev1.Pod) {
			term := corev1.WeightedPodAffinityTerm{PodAffinityTerm: corev1.PodAffinityTerm{Namespaces: []string{"x"}}}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{term}}}
		}), true},
	} {
		if got, err := podScope(c.scope, c.pod); got != c.want || err != nil {
			t.Errorf("%+v: got %v, %v, want %v", c.scope, got, err, c.want)
		}
	}
}

// An update counts where it can move a pod between scopes, and nowhere else:
// old pods that a quota would refuse can still be labeled.
func TestUpdatesThatCount(t *testing.T) {
	plain := podWith(nil, container("c", nil, nil))
	due := podWith(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }, container("c", nil, nil))
	later := podWith(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](4) }, container("c", nil, nil))
	for _, c := range []struct {
		op          admission.Operation
		changed, is *corev1.Pod
		subresource string
		want        bool
	}{
		{admission.Create, plain, nil, "", true}, {admission.Update, plain, plain, "", false}, {admission.Update, due, plain, "", true},
		{admission.Update, plain, due, "", true}, {admission.Update, later, due, "", false}, {admission.Update, due, plain, "status",
			false},
		{admission.Update, plain, plain, "resize", true}, {admission.Delete, nil, plain, "", false},
	} {
		var changed, is runtime.Object
		if c.changed != nil {
			changed = c.changed
		}
		if c.is != nil {
			is = c.is
		}
		a := admission.NewAttributesRecord(changed, is, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p",
			corev1.SchemeGroupVersion.WithResource("pods"), c.subresource, c.op, nil, false, nil)
		if got := podEvaluator(Config{}).Handles(a); got != c.want {
			t.Errorf("%s %q from %v to %v: counts %v, want %v", c.op, c.subresource, c.is, c.changed, got, c.want)
		}
	}
}

// A claim that is moved to another attributes class counts in the scope of each.
func TestClaimsBetweenAttributesClasses(t *testing.T) {
	in := func(name string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass, Operator: "In",
			Values: []string{name}}
	}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: ptr.To("wanted")},
		Status: corev1.PersistentVolumeClaimStatus{CurrentVolumeAttributesClassName: ptr.To("had"),
			ModifyVolumeStatus: &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "target"}}}
	scope := claimEvaluator(Config{}).scope
	for name, want := range map[string]bool{"wanted": true, "had": true, "target": true, "other": false} {
		if got, err := scope(in(name), claim); got != want || err != nil {
			t.Errorf("class %s: in scope %v, %v, want %v", name, got, err, want)
		}
	}
	none := corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass, Operator: "DoesNotExist"}
	if got, _ := scope(none, &corev1.PersistentVolumeClaim{}); !got {
		t.Error("a claim without a class is not in the scope of those without")
	}
}

func TestConstraints(t *testing.T) {
	pods := podEvaluator(Config{Now: func() time.Time { return now }})
	required := []corev1.ResourceName{"limits.cpu", "requests.memory", "pods", "requests.gpus.example.com/g"}
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{podWith(nil, container("a", nil, nil), container("b", list("memory", "1"), nil)),
			"must specify limits.cpu for: a,b; requests.memory for: a"},
		{podWith(nil, container("a", list("memory", "1"), list("cpu", "1"))), ""},
		{podWith(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory", "1"), Limits: list("cpu", "1")}
		}, container("a", nil, nil)), ""},
	} {
		got := ""
		if err := pods.Constraints(required, c.pod); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestCounting is what a quota controller does: count a namespace by lists.
func TestCounting(t *testing.T) {
	other := podWith(func(p *corev1.Pod) { p.Namespace = "other" })
	client := fake.NewClientset(other,
		podWith(nil, container("c", list("cpu", "1"), nil)),
		podWith(func(p *corev1.Pod) { p.Name = "q"; p.Spec.PriorityClassName = "high" }, container("c", list("cpu", "2"), nil)),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{Type: "NodePort",
			Ports: make([]corev1.ServicePort, 3)}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	registry := generic.NewRegistry(
		Evaluators(Config{Lister: generic.ListerFuncForResourceFunc(func(gvr schema.GroupVersionResource) (informers.GenericInformer,
			error) {
			return factory.ForResource(gvr)
		})}))
	for _, gvr := range []string{"pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas",
		"replicationcontrollers"} {
		if _, err := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: gvr}); err != nil {
			t.Fatal(err)
		}
	}
	factory.Core().V1().Pods().Informer()
	factory.Core().V1().Services().Informer()
	factory.Core().V1().Secrets().Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	hard := list("requests.cpu", "0", "pods", "0", "services.nodeports", "0", "secrets", "0", "count/secrets", "0")
	for _, c := range []struct {
		selector *corev1.ScopeSelector
		hard     corev1.ResourceList
		want     string
	}{
		{nil, hard, "count/secrets=1 pods=2 requests.cpu=3 secrets=1 services.nodeports=3"},
		{&corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: "PriorityClass", Operator: "In",
			Values: []string{"high"}}}},
			list("requests.cpu", "0", "pods", "0"), "pods=1 requests.cpu=2"},
	} {
		got, err := quotav1.CalculateUsage("ns", nil, c.hard, registry, c.selector)
		if err != nil || text(got) != c.want {
			t.Errorf("got %s, %v, want %s", text(got), err, c.want)
		}
	}
}
