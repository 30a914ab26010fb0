package admit

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

func configured(make admission.Factory, text string) admission.Factory {
	return func(io.Reader) (admission.Interface, error) { return make(strings.NewReader(text)) }
}

// TestChosenPlugins: the defaults are upstream's but for external IPs, and a
// name on both lists is a mistake.
func TestChosenPlugins(t *testing.T) {
	on, err := selected([]string{AlwaysPullImages}, []string{DenyServiceExternalIPs})
	if err != nil || !slices.Contains(on, AlwaysPullImages) || slices.Contains(on, DenyServiceExternalIPs) ||
		slices.Contains(on, EventRateLimit) {
		t.Errorf("selected %v, %v", on, err)
	}
	if _, err := selected([]string{Priority}, []string{Priority}); err == nil {
		t.Error("a plugin both enabled and disabled is accepted")
	}
	if errs := NewOptions().Validate(); len(errs) > 0 {
		t.Error(errs)
	}
	file := filepath.Join(t.TempDir(), "admission.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n" +
		"- name: EventRateLimit\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n   " +
		" limits: [{type: Nobody, qps: 1, burst: 1}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newChain(t, func(c *Config) { c.ConfigFile = file }); err != nil {
		t.Errorf("the configuration of a plugin that is off: %v", err)
	}
	if _, err := newChain(t, func(c *Config) { c.ConfigFile, c.Enable = file, []string{EventRateLimit} }); err == nil ||
		!strings.Contains(err.Error(), "limits[0]") {
		t.Errorf("a wrong configuration gives %v", err)
	}
}

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: named("ns", "s")}
	for _, f := range change {
		f(s)
	}
	return s
}

// clusterWide and inNamespace grant verbs on a resource to a user.
func clusterWide(who, group, resource string, verbs ...string) []any {
	rules := []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{group}, Resources: []string{resource}}}
	return []any{&rbacv1.ClusterRole{ObjectMeta: named("", who), Rules: rules}, &rbacv1.ClusterRoleBinding{ObjectMeta: named("", who),
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: who}, Subjects: []rbacv1.Subject{{Kind: "User", Name: who}}}}
}

// TestExternalAddresses is CVE-2020-8554: a Service that draws the packets to
// an address which is not its own.
func TestExternalAddresses(t *testing.T) {
	external := func(ips ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
	}
	r := newRig(t, newDenyServiceExternalIPs)
	expect(t, r.do(request{resource: "services", now: service()}), "")
	expect(t, r.do(request{resource: "services", now: service(external("10.0.0.1"))}), "spec.externalIPs: 10.0.0.1")
	expect(t, r.do(request{resource: "services", now: service(external("10.0.0.1", "10.0.0.2")), old: service(external("10.0.0.1"))}),
		"spec.externalIPs: 10.0.0.2")
	expect(t, r.do(request{resource: "services", now: service(external("10.0.0.1")), old: service(external("10.0.0.1", "10.0.0.2"))}), "")

	balanced := func(ip string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}} }
	}
	tenant, controller := &user.DefaultInfo{Name: "tenant"}, &user.DefaultInfo{Name: "controller"}
	grants := clusterWide("controller", "", "services/status", "patch")
	r = newRig(t, newServiceLoadBalancerIngressRestriction, grants[0].(*rbacv1.ClusterRole), grants[1].(*rbacv1.ClusterRoleBinding),
		&rbacv1.Role{ObjectMeta: named("ns", "t"), Rules: grants[0].(*rbacv1.ClusterRole).Rules},
		&rbacv1.RoleBinding{ObjectMeta: named("ns", "t"), RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "t"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "tenant"}}})
	const status = "services/status"
	expect(t, r.do(request{resource: status, now: service(balanced("8.8.8.8")), old: service(), user: tenant}),
		"status.loadBalancer.ingress[0]: 8.8.8.8")
	expect(t, r.do(request{resource: status, now: service(balanced("8.8.8.8")), old: service(), user: controller}), "")
	expect(t, r.do(request{resource: status, now: service(balanced("8.8.8.8")), old: service(balanced("8.8.8.8")), user: tenant}), "")
	expect(t, r.do(request{resource: status, now: service(), old: service(balanced("8.8.8.8")), user: tenant}), "")
}

// TestForeignEndpoints is CVE-2021-25740: endpoints that lead to another
// namespace's pods.
func TestForeignEndpoints(t *testing.T) {
	at := func(namespace, ip string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: named(namespace, "p"), Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}}}
	}
	grants := clusterWide("controller", "discovery.k8s.io", "endpointslices", "update")
	r := newRig(t, newEndpointAddressRestriction, at("ns", "10.1.0.1"), at("other", "10.1.0.2"), grants[0].(*rbacv1.ClusterRole),
		grants[1].(*rbacv1.ClusterRoleBinding),
		&corev1.Node{ObjectMeta: named("", "n"), Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}}}})
	slice := func(ips ...string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: named("ns", "s"), Endpoints: []discoveryv1.Endpoint{{Addresses: ips}}}
	}
	const resource = "endpointslices.discovery.k8s.io"
	dnsSlice := slice("192.0.2.1")
	dnsSlice.Namespace = "kube-system"
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"own pod", request{resource: resource, now: slice("10.1.0.1")}, ""},
		{"outside", request{resource: resource, now: slice("203.0.113.7")}, ""},
		{"foreign pod", request{resource: resource, now: slice("10.1.0.2")}, "it belongs to a pod of another namespace"},
		{"mapped foreign pod", request{resource: resource, now: slice("::ffff:10.1.0.2")}, "it belongs to a pod of another namespace"},
		{"pod to come", request{resource: resource, now: slice("10.1.0.3")}, "it is in the pods' range of node n"},
		{"node", request{resource: resource, now: slice("192.0.2.1")}, "it is the address of node n"},
		{"stored before", request{resource: resource, now: slice("10.1.0.2"), old: slice("10.1.0.2")}, ""},
		{"controller", request{resource: resource, now: slice("10.1.0.2"), user: &user.DefaultInfo{Name: "controller"}}, ""},
		{"publisher of DNS", request{resource: resource, now: dnsSlice, user: &user.DefaultInfo{Name: dnsPublisher}}, ""},
		{"publisher of DNS elsewhere", request{resource: resource, now: slice("192.0.2.1"), user: &user.DefaultInfo{Name: dnsPublisher}},
			"node n"},
		{"legacy endpoints", request{resource: "endpoints",
			now: &corev1.Endpoints{ObjectMeta: named("ns", "s"), //nolint:staticcheck // it is still served
				Subsets: []corev1.EndpointSubset{{NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.1.0.2"}}}}}},
			"another namespace"}, //nolint:staticcheck // see above
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, r.do(c.request), c.want) })
	}
}

func TestAlwaysPullImages(t *testing.T) {
	r := newRig(t, newAlwaysPullImages)
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "x"}}}}
	})
	expect(t, r.do(request{resource: "pods", now: pod}), "")
	for at, policy := range pullPolicies(pod) {
		if *policy != corev1.PullAlways {
			t.Errorf("%s has policy %q", at, *policy)
		}
	}
	late := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent })
	expect(t, (&pullImages{}).Validate(t.Context(), request{resource: "pods", now: late}.attributes(), nil),
		"spec.containers[0].imagePullPolicy:")
	expect(t, r.do(request{resource: "pods", now: late, old: late.DeepCopy()}), "")
	if late.Spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Error("an update without a new image changes the policy")
	}
}

func TestOwnerReferences(t *testing.T) {
	grants := clusterWide("ann", "", "pods", "delete")
	grants[0].(*rbacv1.ClusterRole).Rules = append(grants[0].(*rbacv1.ClusterRole).Rules,
		rbacv1.PolicyRule{Verbs: []string{"update"}, APIGroups: []string{"apps"}, Resources: []string{"replicasets/finalizers"}})
	r := newRig(t, func(io.Reader) (admission.Interface, error) {
		plugin, err := newOwnerReferencesPermissionEnforcement(nil)
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, meta.RESTScopeNamespace)
		plugin.(wantsRESTMapper).setRESTMapper(mapper)
		return plugin, err
	}, grants[0].(*rbacv1.ClusterRole), grants[1].(*rbacv1.ClusterRoleBinding))
	owned := func(blocks bool) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "u",
				BlockOwnerDeletion: &blocks}}
		})
	}
	ann, eve := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "eve"}
	expect(t, r.do(request{resource: "pods", now: owned(true), user: ann}), "")
	expect(t, r.do(request{resource: "pods", now: owned(true), user: eve}), "cannot set blockOwnerDeletion")
	expect(t, r.do(request{resource: "pods", now: owned(false), user: eve}), "")
	expect(t, r.do(request{resource: "pods", now: owned(false), old: newPod(), user: eve}),
		"cannot set an ownerRef on a resource you can't delete")
	expect(t, r.do(request{resource: "pods", now: owned(true), old: owned(true), user: eve}), "")
	expect(t, r.do(request{resource: "pods/status", now: owned(true), old: newPod(), user: eve}), "")
}

func TestNodeSelectorsOfNamespaces(t *testing.T) {
	annotated := func(name, selector string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{selectorAnnotation: selector}}}
	}
	r := newRig(t, configured(newPodNodeSelector,
		"podNodeSelectorPluginConfig:\n  clusterDefaultNodeSelector: pool=common\n  ns: pool=green,disk=ssd\n"),
		annotated("ns", "pool=green"), &corev1.Namespace{ObjectMeta: named("", "plain")})
	selecting := func(namespace string, selector map[string]string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) { p.Namespace, p.Spec.NodeSelector = namespace, selector })
	}
	pod := selecting("ns", nil)
	expect(t, r.do(request{resource: "pods", now: pod}), "")
	plain := selecting("plain", nil)
	expect(t, r.do(request{resource: "pods", now: plain}), "")
	if pod.Spec.NodeSelector["pool"] != "green" || plain.Spec.NodeSelector["pool"] != "common" {
		t.Errorf("selectors %v and %v", pod.Spec.NodeSelector, plain.Spec.NodeSelector)
	}
	expect(t, r.do(request{resource: "pods", now: selecting("ns", map[string]string{"disk": "ssd"})}), "")
	expect(t, r.do(request{resource: "pods", now: selecting("ns", map[string]string{"pool": "red"})}),
		"conflicts with its namespace node label selector")
	expect(t, r.do(request{resource: "pods", now: selecting("ns", map[string]string{"zone": "a"})}),
		"conflict with its namespace whitelist")
	if _, err := newPodNodeSelector(strings.NewReader("podNodeSelectorConfig: {}")); err == nil {
		t.Error("a misspelt configuration is accepted")
	}
}

func TestTolerationsOfNamespaces(t *testing.T) {
	gpu := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	list := func(all ...corev1.Toleration) string {
		data, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	r := newRig(t, newPodTolerationRestriction, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Annotations: map[string]string{
		defaultTolerationsAnnotation: list(gpu), allowedTolerationsAnnotation: list(gpu,
			corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpEqual, Value: "yes"})}}})
	tolerating := func(all ...corev1.Toleration) *corev1.Pod {
		return newPod(func(p *corev1.Pod) { p.Spec.Tolerations = all })
	}
	pod := tolerating()
	expect(t, r.do(request{resource: "pods", now: pod}), "")
	if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0] != gpu {
		t.Errorf("tolerations %v", pod.Spec.Tolerations)
	}
	spot := corev1.Toleration{Key: "spot", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	expect(t, r.do(request{resource: "pods", now: tolerating(spot)}), "")
	spot.Value = "no"
	expect(t, r.do(request{resource: "pods", now: tolerating(spot)}), "conflict with its namespace whitelist")
	expect(t, r.do(request{resource: "pods", now: tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})}),
		"conflict with its namespace whitelist")
	// What the server itself adds is no choice of the user's.
	expect(t, r.do(request{resource: "pods", now: tolerating(withDefaultTolerations(nil)...)}), "")
	burst := newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = quantities("cpu", "1") })
	expect(t, r.do(request{resource: "pods", now: burst}), "")
	if !slices.ContainsFunc(burst.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == corev1.TaintNodeMemoryPressure }) {
		t.Errorf("a pod with requests does not tolerate memory pressure: %v", burst.Spec.Tolerations)
	}
}

// event makes a request for an event; its kind must be known.
func sendEvent(r *rig, namespace, who string) error {
	event := &corev1.Event{ObjectMeta: named(namespace, "e")}
	a := admission.NewAttributesRecord(event, nil, schema.GroupVersionKind{Version: "v1", Kind: "Event"}, namespace, "e",
		schema.GroupVersionResource{Version: "v1", Resource: "events"}, "", admission.Create, &metav1.CreateOptions{}, false,
		&user.DefaultInfo{Name: who})
	return r.plugin.(admission.ValidationInterface).Validate(r.t.Context(), a, nil)
}

func TestEventRateLimit(t *testing.T) {
	r := newRig(t, configured(newEventRateLimit, "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n"+
		"limits:\n- {type: Namespace, qps: 1, burst: 3, cacheSize: 8}\n"))
	for range 3 {
		expect(t, sendEvent(r, "loud", "x"), "")
	}
	// The bucket refills with one event a second; ten at once are more.
	refused := 0
	for range 10 {
		if sendEvent(r, "loud", "x") != nil {
			refused++
		}
	}
	if refused < 5 {
		t.Errorf("of 10 events above the limit %d were refused", refused)
	}
	expect(t, sendEvent(r, "quiet", "x"), "")
	if _, err := newEventRateLimit(nil); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
}

func TestNamespaceMustExist(t *testing.T) {
	r := newRig(t, newNamespaceExists, &corev1.Namespace{ObjectMeta: named("", "ns")})
	away := newPod(func(p *corev1.Pod) { p.Namespace = "away" })
	expect(t, r.do(request{resource: "pods", now: newPod()}), "")
	expect(t, r.do(request{resource: "pods", now: away}), `namespaces "away" not found`)
	r = newRig(t, newNamespaceAutoProvision)
	expect(t, r.do(request{resource: "pods", now: away}), "")
	if _, err := r.client.CoreV1().Namespaces().Get(t.Context(), "away", metav1.GetOptions{}); err != nil {
		t.Errorf("the namespace was not made: %v", err)
	}
}

func TestImagePolicy(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		asked++
		review.Status.Allowed = review.Spec.Containers[0].Image != "bad"
		review.Status.Reason = "it is " + review.Spec.Containers[0].Image
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \"" + server.URL +
		"\"}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, configured(newImagePolicyWebhook, "imagePolicy:\n  kubeConfigFile: "+file+"\n  retryBackoff: 1\n"))
	of := func(image string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = image })
	}
	expect(t, r.do(request{resource: "pods", now: of("good")}), "")
	expect(t, r.do(request{resource: "pods", now: of("bad")}), "denied one or more images: it is bad")
	expect(t, r.do(request{resource: "pods", now: of("bad")}), "denied one or more images")
	expect(t, r.do(request{resource: "pods", now: of("bad"), old: of("bad")}), "")
	if asked != 2 {
		t.Errorf("the webhook was asked %d times, want once for each set of images", asked)
	}
	server.Close()
	expect(t, r.do(request{resource: "pods", now: of("new")}), "asking the image policy webhook")
	if _, err := newImagePolicyWebhook(nil); err == nil {
		t.Error("a plugin without its webhook is accepted")
	}
}
