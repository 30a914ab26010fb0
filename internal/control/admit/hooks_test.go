package admit_test

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	ar "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestWebhooks asks of webhooks what the upstream suite asks. Each part has
// hooks that see only its own namespace, or kinds of its own.
func TestWebhooks(t *testing.T) {
	env := apitest.StartEnv(t)
	for name, test := range map[string]func(*hooks){
		"deny":               testDeny,
		"timeouts":           testTimeouts,
		"fail closed":        testFailClosed,
		"order and defaults": testOrder,
		"list and change":    testListAndChange,
		"conditions":         testConditions,
		"own configuration":  testOwnConfiguration,
		"custom resources":   testCustomResources,
		"definitions":        testDefinitions,
		"policy":             testPolicy,
	} {
		t.Run(name, func(t *testing.T) { test(newHooks(t, env)) })
	}
}

// hooks is a namespace with a server of webhooks. The path of a hook says what
// it does with what it is asked.
type hooks struct {
	*testing.T
	api kubernetes.Interface
	dyn dynamic.Interface
	ns  string
	url string
	ca  []byte
}

func newHooks(t *testing.T, env *apitest.Env) *hooks {
	t.Helper()
	h := &hooks{T: t, api: client(t, env.Config), dyn: dynamic.NewForConfigOrDie(env.Config)}
	ns, err := h.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "hooks-"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.ns = ns.Name
	if _, err := h.api.CoreV1().ServiceAccounts(h.ns).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(answer))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	h.url, h.ca = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return h
}

// answer is what the hooks say: /deny refuses what is named bad-* or holds it
// (of a deletion and of attaching, everything), /hang never answers,
// /patch/KEY/HEX answers with a patch in hexadecimal, to what has the key.
func answer(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	object := string(review.Request.Object.Raw)
	out := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	path := strings.Split(r.URL.Path, "/")
	switch path[1] {
	case "deny":
		all := review.Request.Operation == admissionv1.Delete || review.Request.Operation == admissionv1.Connect
		if out.Allowed = !all && !strings.Contains(object, "bad"); !out.Allowed {
			out.Result = &metav1.Status{Message: fmt.Sprintf("%s of %s is not allowed", review.Request.Operation,
				review.Request.Resource.Resource)}
		}
	case "hang":
		<-r.Context().Done()
		return
	case "patch":
		if strings.Contains(object, `"`+path[2]+`"`) {
			out.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
			out.Patch, _ = hex.DecodeString(path[3])
		}
	}
	review.Response, review.Request = out, nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// patch is the path of a hook that patches what has the key.
func patch(key, body string) string { return "/patch/" + key + "/" + hex.EncodeToString([]byte(body)) }

func (h *hooks) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func on(group, version, resource string, operations ...ar.OperationType) ar.RuleWithOperations {
	return ar.RuleWithOperations{Operations: operations, Rule: ar.Rule{APIGroups: []string{group}, APIVersions: []string{version},
		Resources: []string{resource}}}
}

func (h *hooks) here() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.ns}}
}

func (h *hooks) at(path string) ar.WebhookClientConfig {
	return ar.WebhookClientConfig{URL: ptr.To(h.url + path), CABundle: h.ca}
}

// validate registers a webhook that refuses; it is removed with the test.
func (h *hooks) validate(name, path string, change func(*ar.ValidatingWebhook),
	rules ...ar.RuleWithOperations) *ar.ValidatingWebhookConfiguration {
	h.Helper()
	hook := ar.ValidatingWebhook{Name: name + ".example.com", ClientConfig: h.at(path), Rules: rules,
		SideEffects:             ptr.To(ar.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, NamespaceSelector: h.here()}
	if change != nil {
		change(&hook)
	}
	c := &ar.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: h.ns + "-" + name, Labels: map[string]string{"of": h.ns}},
		Webhooks: []ar.ValidatingWebhook{hook}}
	c, err := h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(h.Context(), c, metav1.CreateOptions{})
	h.must(err)
	h.Cleanup(func() {
		_ = h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(context.Background(), c.Name, metav1.DeleteOptions{})
	})
	return c
}

func (h *hooks) mutate(name string, change func(*ar.MutatingWebhook), rule ar.RuleWithOperations,
	paths ...string) *ar.MutatingWebhookConfiguration {
	h.Helper()
	c := &ar.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: h.ns + "-" + name, Labels: map[string]string{"of": h.ns}}}
	for i, path := range paths {
		hook := ar.MutatingWebhook{Name: fmt.Sprintf("%s-%d.example.com", name, i), ClientConfig: h.at(path),
			Rules: []ar.RuleWithOperations{rule}, SideEffects: ptr.To(ar.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, NamespaceSelector: h.here()}
		if change != nil {
			change(&hook)
		}
		c.Webhooks = append(c.Webhooks, hook)
	}
	c, err := h.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(h.Context(), c, metav1.CreateOptions{})
	h.must(err)
	h.Cleanup(func() {
		_ = h.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.Background(), c.Name, metav1.DeleteOptions{})
	})
	return c
}

// tryMap creates a config map without writing it.
func (h *hooks) tryMap(name string, data map[string]string) (*corev1.ConfigMap, error) {
	return h.api.CoreV1().ConfigMaps(h.ns).Create(h.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data},
		metav1.CreateOptions{DryRun: []string{"All"}})
}

func (h *hooks) refusesMaps(want string) {
	h.Helper()
	eventually(h.T, "a config map is refused: "+want, func() bool {
		_, err := h.tryMap("bad", nil)
		return err != nil && strings.Contains(err.Error(), want)
	})
}

func (h *hooks) takesMaps() {
	h.Helper()
	eventually(h.T, "a config map is taken again", func() bool { _, err := h.tryMap("bad", nil); return err == nil })
}

func testDeny(h *hooks) {
	maps := h.api.CoreV1().ConfigMaps(h.ns)
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	}
	h.validate("maps", "/deny", nil, on("", "v1", "configmaps", "CREATE", "UPDATE"), on("", "v1", "pods", "CREATE"))
	h.validate("attach", "/deny", nil, on("", "v1", "pods/attach", "CONNECT"))
	h.refusesMaps("CREATE of configmaps is not allowed")
	_, err := h.api.CoreV1().Pods(h.ns).Create(h.Context(), pod("bad"), metav1.CreateOptions{})
	refused(h.T, err, "CREATE of pods is not allowed")
	good, err := maps.Create(h.Context(), configMap("good"), metav1.CreateOptions{})
	h.must(err)
	_, err = maps.Patch(h.Context(), "good", types.MergePatchType, []byte(`{"data":{"a":"bad"}}`), metav1.PatchOptions{})
	refused(h.T, err, "UPDATE of configmaps is not allowed")
	good.Data = map[string]string{"a": "bad"}
	_, err = maps.Update(h.Context(), good, metav1.UpdateOptions{})
	refused(h.T, err, "UPDATE of configmaps is not allowed")
	_, err = h.api.CoreV1().ConfigMaps("default").Create(h.Context(), configMap("bad"), metav1.CreateOptions{DryRun: []string{"All"}})
	h.must(err) // another namespace
	_, err = h.api.CoreV1().Pods(h.ns).Create(h.Context(), pod("attached"), metav1.CreateOptions{})
	h.must(err)
	eventually(h.T, "attaching is refused", func() bool {
		out, err := h.api.CoreV1().RESTClient().Post().Namespace(h.ns).Resource("pods").Name("attached").SubResource("attach").Param(
			"stdout", "true").DoRaw(h.Context())
		return err != nil && strings.Contains(string(out), "CONNECT of pods is not allowed")
	})
}

// testTimeouts: a hook that does not answer is waited for as long as it says,
// and then its failure policy counts.
func testTimeouts(h *hooks) {
	h.validate("slow", "/hang", func(w *ar.ValidatingWebhook) { w.TimeoutSeconds = ptr.To[int32](1) }, on("", "v1", "configmaps", "CREATE"))
	h.refusesMaps("context deadline exceeded")
	c := h.ns + "-slow"
	_, err := h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(h.Context(), c, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`), metav1.PatchOptions{})
	h.must(err)
	h.takesMaps()
	if v := h.validate("default", "/deny", nil, on("", "v1", "configmaps", "CREATE")); *v.Webhooks[0].TimeoutSeconds != 10 ||
		*v.Webhooks[0].FailurePolicy != ar.Fail {
		h.Errorf("defaults: %v", v.Webhooks[0])
	}
}

func testFailClosed(h *hooks) {
	h.validate("closed", "/deny", func(w *ar.ValidatingWebhook) { w.ClientConfig.CABundle = nil }, on("", "v1", "configmaps", "CREATE"))
	h.refusesMaps("failed calling webhook")
}

// testOrder: a hook sees what the one before it wrote, and defaults come after
// all of them.
func testOrder(h *hooks) {
	add := func(key, when string) string {
		return patch(when, `[{"op":"add","path":"/data/`+key+`","value":"yes"}]`)
	}
	h.mutate("maps", nil, on("", "v1", "configmaps", "CREATE"), add("first", "start"), add("second", "first"))
	eventually(h.T, "two hooks in order", func() bool {
		made, err := h.tryMap("m", map[string]string{"start": "yes"})
		return err == nil && made.Data["first"] == "yes" && made.Data["second"] == "yes"
	})
	h.mutate("pods", nil, on("", "v1", "pods", "CREATE"),
		patch("metadata", `[{"op":"add","path":"/spec/initContainers","value":[{"name":"added","image":"i"}]}]`))
	eventually(h.T, "a container is added and gets defaults", func() bool {
		made, err := h.api.CoreV1().Pods(h.ns).Create(h.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
			metav1.CreateOptions{DryRun: []string{"All"}})
		return err == nil && len(made.Spec.InitContainers) == 1 &&
			made.Spec.InitContainers[0].TerminationMessagePolicy == corev1.TerminationMessageReadFile
	})
}

// testListAndChange: configurations are listed and deleted by label, and a
// change of their rules takes effect.
func testListAndChange(h *hooks) {
	for i := range 3 {
		h.validate(fmt.Sprint("v", i), "/deny", nil, on("", "v1", "configmaps", "CREATE"))
		h.mutate(fmt.Sprint("m", i), nil, on("", "v1", "configmaps", "CREATE"),
			patch("metadata", `[{"op":"add","path":"/data","value":{"hooked":"yes"}}]`))
	}
	registration, mine := h.api.AdmissionregistrationV1(), metav1.ListOptions{LabelSelector: "of=" + h.ns}
	h.refusesMaps("not allowed")
	hooked := func() bool { m, err := h.tryMap("m", nil); return err == nil && m.Data["hooked"] == "yes" }
	eventually(h.T, "config maps are changed", hooked)
	v, err := registration.ValidatingWebhookConfigurations().List(h.Context(), mine)
	h.must(err)
	m, err := registration.MutatingWebhookConfigurations().List(h.Context(), mine)
	h.must(err)
	if len(v.Items) != 3 || len(m.Items) != 3 {
		h.Errorf("listed %d and %d", len(v.Items), len(m.Items))
	}
	h.must(registration.ValidatingWebhookConfigurations().DeleteCollection(h.Context(), metav1.DeleteOptions{}, mine))
	h.takesMaps()
	h.must(registration.MutatingWebhookConfigurations().DeleteCollection(h.Context(), metav1.DeleteOptions{}, mine))
	eventually(h.T, "config maps are not changed any more", func() bool { return !hooked() })

	c := h.validate("changed", "/deny", nil, on("", "v1", "configmaps", "CREATE"))
	h.refusesMaps("not allowed")
	c.Webhooks[0].Rules[0].Operations = []ar.OperationType{"UPDATE"}
	_, err = registration.ValidatingWebhookConfigurations().Update(h.Context(), c, metav1.UpdateOptions{})
	h.must(err)
	h.takesMaps()
	_, err = registration.ValidatingWebhookConfigurations().Patch(h.Context(), c.Name, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["CREATE"]}]`), metav1.PatchOptions{})
	h.must(err)
	h.refusesMaps("not allowed")
}

func testConditions(h *hooks) {
	skip := ar.MatchCondition{Name: "skip-me", Expression: "object.metadata.name != 'skip-me'"}
	c := h.mutate("conditions", func(w *ar.MutatingWebhook) { w.MatchConditions = []ar.MatchCondition{skip} },
		on("", "v1", "configmaps", "CREATE"), patch("metadata", `[{"op":"add","path":"/data","value":{"hooked":"yes"}}]`))
	if len(c.Webhooks[0].MatchConditions) != 1 || c.Webhooks[0].MatchConditions[0] != skip {
		h.Errorf("stored conditions: %v", c.Webhooks[0].MatchConditions)
	}
	eventually(h.T, "a config map is changed", func() bool { m, err := h.tryMap("m", nil); return err == nil && m.Data["hooked"] == "yes" })
	if m, err := h.tryMap("skip-me", nil); err != nil || m.Data["hooked"] != "" {
		h.Errorf("a map the condition leaves out: %v, %v", m, err)
	}
	c.Webhooks[0].MatchConditions = append(c.Webhooks[0].MatchConditions, ar.MatchCondition{Name: "more", Expression: "true"})
	c, err := h.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(h.Context(), c, metav1.UpdateOptions{})
	h.must(err)
	if len(c.Webhooks[0].MatchConditions) != 2 {
		h.Errorf("updated conditions: %v", c.Webhooks[0].MatchConditions)
	}
	c.Webhooks[0].MatchConditions[0].Expression = "... [] bad expression"
	_, err = h.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(h.Context(), c, metav1.UpdateOptions{})
	refused(h.T, err, "compilation failed")
	bad := &ar.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bad-" + h.ns},
		Webhooks: []ar.ValidatingWebhook{{Name: "bad.example.com", ClientConfig: h.at("/deny"),
			SideEffects: ptr.To(ar.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []ar.MatchCondition{{Name: "bad", Expression: "... [] bad expression"}}}}}
	_, err = h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(h.Context(), bad, metav1.CreateOptions{})
	refused(h.T, err, "compilation failed")
}

// testOwnConfiguration: no hook can change or keep the configuration of hooks,
// or no one could remove a broken one.
func testOwnConfiguration(h *hooks) {
	everything := func(resource string) ar.RuleWithOperations {
		return on("admissionregistration.k8s.io", "*", resource, "CREATE", "UPDATE", "DELETE")
	}
	anywhere := func(w *ar.ValidatingWebhook) { w.NamespaceSelector = nil }
	h.validate("own", "/deny", anywhere, everything("validatingwebhookconfigurations"), everything("mutatingwebhookconfigurations"),
		on("", "v1", "configmaps", "CREATE"))
	h.mutate("own", func(w *ar.MutatingWebhook) { w.NamespaceSelector = nil }, everything("*"),
		patch("metadata", `[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`))
	h.refusesMaps("not allowed")
	made := h.validate("bad", "/deny", nil, on("", "v1", "none", "CREATE"))
	if made.Labels["hooked"] != "" {
		h.Errorf("a hook changed a configuration: %v", made.Labels)
	}
	h.must(h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(h.Context(), made.Name, metav1.DeleteOptions{}))
	h.must(h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(h.Context(), h.ns+"-own", metav1.DeleteOptions{}))
	h.must(h.api.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(h.Context(), h.ns+"-own", metav1.DeleteOptions{}))
}

var definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func definitionOf(plural, kind string, versions ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".hooks.example.com"},
		"spec": map[string]any{"group": "hooks.example.com", "scope": "Namespaced", "names": map[string]any{"plural": plural, "kind": kind},
			"versions": versions}}}
}

func versionOf(name string, storage bool) map[string]any {
	text := map[string]any{"type": "string"}
	return map[string]any{"name": name, "served": true, "storage": storage,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"a": text,
			"known": text}}}}
}

// testCustomResources: they are refused and changed like others; what a hook
// adds is pruned, and a change of the stored version does not disturb it.
func testCustomResources(h *hooks) {
	_, err := h.dyn.Resource(definitionResource).Create(h.Context(), definitionOf("boats", "Boat", versionOf("v1", true),
		versionOf("v2", false)), metav1.CreateOptions{})
	h.must(err)
	boats := h.dyn.Resource(schema.GroupVersionResource{Group: "hooks.example.com", Version: "v1", Resource: "boats"}).Namespace(h.ns)
	boat := func(name, a string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "hooks.example.com/v1", "kind": "Boat",
			"metadata": map[string]any{"name": name}, "a": a}}
	}
	eventually(h.T, "boats are served", func() bool {
		_, err := boats.Create(h.Context(), boat("first", "x"), metav1.CreateOptions{})
		return err == nil
	})
	h.mutate("boats", nil, on("hooks.example.com", "v1", "boats", "CREATE", "UPDATE"),
		patch("metadata", `[{"op":"add","path":"/known","value":"yes"},{"op":"add","path":"/unknown","value":"yes"}]`))
	dry := metav1.CreateOptions{DryRun: []string{"All"}}
	eventually(h.T, "a boat is changed and pruned", func() bool {
		o, err := boats.Create(h.Context(), boat("second", "x"), dry)
		return err == nil && o.Object["known"] == "yes" && o.Object["unknown"] == nil
	})
	_, err = h.dyn.Resource(definitionResource).Patch(h.Context(), "boats.hooks.example.com", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage",`+
			`"value":true}]`), metav1.PatchOptions{})
	h.must(err)
	eventually(h.T, "a boat is patched after the stored version changed", func() bool {
		o, err := boats.Patch(h.Context(), "first", types.MergePatchType, []byte(`{"a":"patched"}`), metav1.PatchOptions{})
		return err == nil && o.Object["a"] == "patched" && o.Object["known"] == "yes"
	})
	c := h.validate("boats", "/deny", nil, on("hooks.example.com", "*", "boats", "CREATE", "UPDATE", "DELETE"))
	eventually(h.T, "a boat is refused", func() bool {
		_, err := boats.Create(h.Context(), boat("third", "bad"), dry)
		return err != nil && strings.Contains(err.Error(), "CREATE of boats is not allowed")
	})
	_, err = boats.Patch(h.Context(), "first", types.MergePatchType, []byte(`{"a":"bad"}`), metav1.PatchOptions{})
	refused(h.T, err, "UPDATE of boats is not allowed")
	refused(h.T, boats.Delete(h.Context(), "first", metav1.DeleteOptions{}), "DELETE of boats is not allowed")
	h.must(h.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(h.Context(), c.Name, metav1.DeleteOptions{}))
	eventually(h.T, "the boat can be deleted", func() bool { return boats.Delete(h.Context(), "first", metav1.DeleteOptions{}) == nil })
}

func testDefinitions(h *hooks) {
	h.validate("definitions", "/deny", func(w *ar.ValidatingWebhook) { w.NamespaceSelector = nil },
		on("apiextensions.k8s.io", "*", "customresourcedefinitions", "CREATE"))
	eventually(h.T, "a definition is refused", func() bool {
		_, err := h.dyn.Resource(definitionResource).Create(h.Context(), definitionOf("bads", "Bad", versionOf("v1", true)),
			metav1.CreateOptions{DryRun: []string{"All"}})
		return err != nil && strings.Contains(err.Error(), "CREATE of customresourcedefinitions is not allowed")
	})
}
