package admit_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"encoding/pem"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// patience bounds how long a test waits for a server to learn something; it
// only decides how long a failure takes to be reported.
const patience = 30 * time.Second

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventually asks until the answer is yes: what the server learns through its
// own watches has no event that a client could wait for.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return yes(), nil })
	if err != nil {
		t.Fatalf("never happened: %s", what)
	}
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
}

func makePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// makeTeam creates a namespace with what the controllers would put there.
func makeTeam(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("team").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPodsAndTheirTokens(t *testing.T) {
	env := apitest.StartEnv(t)
	admin, ctx := client(t, env.Config), t.Context()
	makeTeam(t, admin)
	pod, err := admin.CoreV1().Pods("team").Create(ctx, makePod("web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "default" || len(pod.Spec.Volumes) != 1 || len(pod.Spec.Tolerations) != 2 ||
		ptr.Deref(pod.Spec.Priority, -1) != 0 ||
		ptr.Deref(pod.Spec.PreemptionPolicy, "") != corev1.PreemptLowerPriority {
		t.Errorf("pod was not filled in: %+v", pod.Spec)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](3607),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "web", UID: pod.UID},
	}}
	issued, err := admin.CoreV1().ServiceAccounts("team").CreateToken(ctx, "default", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asPod := rest.AnonymousClientConfig(env.Config)
	asPod.BearerToken = issued.Status.Token
	who, err := client(t, asPod).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if who.Status.UserInfo.Username != "system:serviceaccount:team:default" ||
		who.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"][0] != "web" {
		t.Errorf("token speaks for %+v", who.Status.UserInfo)
	}
	if _, err := client(t, asPod).CoreV1().Pods("team").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account without roles lists pods: %v", err)
	}
	if err := admin.CoreV1().Pods("team").Delete(ctx, "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token of a deleted pod is refused", func() bool {
		_, err := client(t, asPod).CoreV1().Pods("team").List(ctx, metav1.ListOptions{})
		return apierrors.IsUnauthorized(err)
	})
}

func TestRolesTakeEffect(t *testing.T) {
	env := apitest.StartEnv(t)
	admin, ann, ctx := client(t, env.Config), client(t, env.As(t, "ann", "devs")), t.Context()
	makeTeam(t, admin)
	if _, err := ann.CoreV1().Pods("team").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("without a role: %v", err)
	}
	bind := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "devs"}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io",
		Kind: "ClusterRole", Name: "admin"},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: "devs"}}}
	if _, err := admin.RbacV1().RoleBindings("team").Create(ctx, bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a binding takes effect", func() bool {
		_, err := ann.CoreV1().Pods("team").List(ctx, metav1.ListOptions{})
		return err == nil
	})
	if _, err := ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a role in one namespace reaches into another: %v", err)
	}
	// admin may hand out roles, but not more than it holds.
	own := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}}
	if _, err := ann.RbacV1().Roles("team").Create(ctx, own, metav1.CreateOptions{}); err != nil {
		t.Errorf("granting what one holds: %v", err)
	}
	more := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}}
	_, err := ann.RbacV1().Roles("team").Create(ctx, more, metav1.CreateOptions{})
	refused(t, err, "is attempting to grant RBAC permissions not currently held")
	// What is added to view reaches admin.
	part := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part",
		Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, part, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "view's new rule reaches admin", func() bool {
		role, err := admin.RbacV1().ClusterRoles().Get(ctx, "admin", metav1.GetOptions{})
		return err == nil && strings.Contains(role.String(), "example.com")
	})
}

func TestNodesKeepToThemselves(t *testing.T) {
	env := apitest.StartEnv(t)
	admin, node, ctx := client(t, env.Config), client(t, env.As(t, "system:node:n1", "system:nodes")), t.Context()
	makeTeam(t, admin)
	self, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(self.Spec.Taints) != 1 || self.Spec.Taints[0].Key != "node.kubernetes.io/not-ready" {
		t.Errorf("taints %v", self.Spec.Taints)
	}
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{})
	refused(t, err, `node "n1" is not allowed to modify node "n2"`)
	_, err = node.CoreV1().Nodes().Patch(ctx, "n1", "application/merge-patch+json", []byte(`{"spec":{"taints":[]}}`), metav1.PatchOptions{})
	refused(t, err, `node "n1" is not allowed to modify taints`)
	if err := node.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node deletes itself: %v", err)
	}
	for _, name := range []string{"s1", "s2"} {
		if _, err := admin.CoreV1().Secrets("team").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := makePod("web")
	pod.Spec.NodeName = "n1"
	pod.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s1"}}}}
	if _, err := admin.CoreV1().Pods("team").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// At once, as a kubelet does: no waiting for the server to have noticed.
	if _, err := node.CoreV1().Secrets("team").Get(ctx, "s1", metav1.GetOptions{}); err != nil {
		t.Errorf("a node cannot read its pod's secret: %v", err)
	}
	if _, err := node.CoreV1().Secrets("team").Get(ctx, "s2", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node reads another secret: %v", err)
	}
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("a node cannot list its pods: %v", err)
	}
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node lists all pods: %v", err)
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func onConfigMaps() []admissionregistrationv1.NamedRuleWithOperations {
	return []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule()}}
}

func rule() admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{"CREATE"},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}
}

func TestPoliciesAndWebhooks(t *testing.T) {
	env := apitest.StartEnv(t)
	admin, ctx := client(t, env.Config), t.Context()
	registration := admin.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: onConfigMaps()},
			Validations: []admissionregistrationv1.Validation{{Expression: "!object.metadata.name.startsWith('bad')",
				Message: "no bad names"}},
		}}
	if _, err := registration.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "no-bad"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "no-bad", ValidationActions: []admissionregistrationv1.ValidationAction{"Deny"},
		}}
	if _, err := registration.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dry := metav1.CreateOptions{DryRun: []string{"All"}}
	eventually(t, "a validating policy refuses", func() bool {
		_, err := admin.CoreV1().ConfigMaps("default").Create(ctx, configMap("bad"), dry)
		return err != nil && strings.Contains(err.Error(), "no bad names")
	})
	if _, err := admin.CoreV1().ConfigMaps("default").Create(ctx, configMap("good"), dry); err != nil {
		t.Errorf("a policy refuses what it should not: %v", err)
	}

	hook := newHook(t)
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	if _, err := registration.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "label"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "label.example.com", ClientConfig: hook, Rules: []admissionregistrationv1.RuleWithOperations{rule()},
			SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a mutating webhook changes", func() bool {
		made, err := admin.CoreV1().ConfigMaps("default").Create(ctx, configMap("good"), dry)
		return err == nil && made.Labels["hooked"] == "yes"
	})
	if _, err := registration.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "deny.example.com", ClientConfig: hook, Rules: []admissionregistrationv1.RuleWithOperations{rule()},
			SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a validating webhook refuses", func() bool {
		_, err := admin.CoreV1().ConfigMaps("default").Create(ctx, configMap("refuse-me"), dry)
		return err != nil && strings.Contains(err.Error(), "the hook says no")
	})
}

func TestMutatingPolicy(t *testing.T) {
	env := apitest.StartEnv(t)
	admin, ctx := client(t, env.Config), t.Context()
	registration := admin.AdmissionregistrationV1()
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "label"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   &admissionregistrationv1.MatchResources{ResourceRules: onConfigMaps()},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{PatchType: "ApplyConfiguration",
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
					Expression: `Object{metadata: Object.metadata{labels: {"policy": "yes"}}}`,
				}}},
		}}
	if _, err := registration.MutatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := registration.MutatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "label"}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "label"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a mutating policy changes", func() bool {
		made, err := admin.CoreV1().ConfigMaps("default").Create(ctx, configMap("good"), metav1.CreateOptions{DryRun: []string{"All"}})
		return err == nil && made.Labels["policy"] == "yes"
	})
}

// newHook serves a webhook that labels what it may change and refuses objects
// named refuse-*.
func newHook(t *testing.T) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.HasPrefix(review.Request.Name, "refuse")}
		if !answer.Allowed {
			answer.Result = &metav1.Status{Message: "the hook says no"}
		} else if strings.HasPrefix(r.URL.Path, "/") && !strings.Contains(string(review.Request.Object.Raw), "hooked") {
			answer.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
			answer.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`)
		}
		review.Response, review.Request = answer, nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	url := server.URL
	return admissionregistrationv1.WebhookClientConfig{URL: &url,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
}

func TestAnonymous(t *testing.T) {
	env := apitest.StartEnv(t)
	nobody := client(t, rest.AnonymousClientConfig(env.Config)).Discovery().RESTClient()
	for path, want := range map[string]int{
		"/healthz": 200, "/livez": 200, "/readyz": 200, "/livez/ping": 200, "/version": 200,
		"/api": 401, "/metrics": 401, "/openid/v1/jwks": 401, "/api/v1/namespaces": 401,
	} {
		var code int
		answer := nobody.Get().AbsPath(path).Do(t.Context()).StatusCode(&code)
		if code != want {
			t.Errorf("%s answers %d, want %d: %v", path, code, want, answer.Error())
		}
	}
}
