package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestServer asks of the server as a whole what the upstream suite asks:
// watches that begin anywhere and agree with each other, lists that go on after
// compaction, what cannot be a table, and discovery in one document.
func TestServer(t *testing.T) {
	env := apitest.StartEnv(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"watch from a version":        testWatchFrom,
		"watch by label":              testWatchLabel,
		"watches agree":               testWatchesAgree,
		"continue after compaction":   testContinueAfterCompaction,
		"no table":                    testNoTable,
		"each group has a resource":   testEveryGroup,
		"aggregated discovery":        testAggregatedDiscovery,
		"service account's discovery": testIssuerDiscovery,
		"impersonation and reviews":   testReviews,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, env)) })
	}
}

func (f *fixture) watch(t *testing.T, version, selector string) watch.Interface {
	t.Helper()
	w, err := f.CoreV1().ConfigMaps(f.ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, LabelSelector: selector,
		TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func (f *fixture) set(t *testing.T, cm *corev1.ConfigMap, value string) *corev1.ConfigMap {
	t.Helper()
	cm = cm.DeepCopy()
	cm.Data = map[string]string{"mutation": value}
	cm, err := f.CoreV1().ConfigMaps(f.ns).Update(t.Context(), cm, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

func (f *fixture) remove(t *testing.T, name string) {
	t.Helper()
	if err := f.CoreV1().ConfigMaps(f.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, w watch.Interface, typ watch.EventType, value string) {
	t.Helper()
	e := next(t, w)
	if cm, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != typ || cm.Data["mutation"] != value {
		t.Errorf("the watch says %v %v, want %v with mutation %q", e.Type, e.Object, typ, value)
	}
}

// testWatchFrom: a watch begins after the version it names, and one that was
// closed goes on where it was.
func testWatchFrom(t *testing.T, f *fixture) {
	first := f.set(t, f.configMap(t, "a", nil), "1")
	f.set(t, first, "2")
	f.remove(t, "a")
	w := f.watch(t, first.ResourceVersion, "")
	expect(t, w, watch.Modified, "2")
	w.Stop()
	w = f.watch(t, first.ResourceVersion, "")
	expect(t, w, watch.Modified, "2")
	expect(t, w, watch.Deleted, "2")
}

// testWatchLabel: an object that stops matching is deleted to the watch, and
// nothing is heard of it until it matches again.
func testWatchLabel(t *testing.T, f *fixture) {
	cm := f.configMap(t, "a", map[string]string{"l": "yes"})
	w := f.watch(t, cm.ResourceVersion, "l=yes")
	cm = f.set(t, cm, "1")
	cm.Labels["l"] = "no"
	cm = f.set(t, cm, "1")
	expect(t, w, watch.Modified, "1")
	expect(t, w, watch.Deleted, "1")
	cm = f.set(t, cm, "2") // unseen
	cm.Labels["l"] = "yes"
	cm = f.set(t, cm, "2")
	f.set(t, cm, "3")
	f.remove(t, "a")
	expect(t, w, watch.Added, "2")
	expect(t, w, watch.Modified, "3")
	expect(t, w, watch.Deleted, "3")
}

// testWatchesAgree: watches that begin at each event of a first one see the
// rest in the same order.
func testWatchesAgree(t *testing.T, f *fixture) {
	start := f.configMap(t, "start", nil).ResourceVersion
	const changes = 60
	go func() {
		maps := f.CoreV1().ConfigMaps(f.ns)
		for i := range changes {
			name := fmt.Sprint("cm-", i/3)
			switch i % 3 {
			case 0:
				_, _ = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			case 1:
				_, _ = maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
					Data: map[string]string{"i": "1"}}, metav1.UpdateOptions{})
			default:
				_ = maps.Delete(t.Context(), name, metav1.DeleteOptions{})
			}
		}
	}()
	version := func(w watch.Interface) string { return next(t, w).Object.(*corev1.ConfigMap).ResourceVersion }
	first, others := f.watch(t, start, ""), []watch.Interface{}
	for range changes {
		want := version(first)
		for i, w := range others {
			if got := version(w); got != want {
				t.Fatalf("watch %d saw version %s, the first %s", i, got, want)
			}
		}
		others = append(others, f.watch(t, want, ""))
	}
}

// testContinueAfterCompaction: a token whose version is gone answers 410 with
// another one, which continues with what is there now.
func testContinueAfterCompaction(t *testing.T, f *fixture) {
	templates := f.CoreV1().PodTemplates(f.ns)
	for i := range 40 {
		_, err := templates.Create(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("template-%04d", i)},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := templates.List(t.Context(), metav1.ListOptions{Limit: 10})
	if err != nil || list.Continue == "" || ptr.Deref(list.RemainingItemCount, 0) != 30 {
		t.Fatalf("the first page: %v, %v", list.ListMeta, err)
	}
	last, err := templates.Create(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "zz-later"},
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(last.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.env.Store.Client().Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	_, err = templates.List(t.Context(), metav1.ListOptions{Limit: 10, Continue: list.Continue})
	status, ok := err.(apierrors.APIStatus)
	if !ok || !apierrors.IsResourceExpired(err) || status.Status().Code != http.StatusGone || status.Status().ListMeta.Continue == "" {
		t.Fatalf("a token of a compacted version: %v", err)
	}
	names, version := []string{}, ""
	for options := (metav1.ListOptions{Limit: 10, Continue: status.Status().ListMeta.Continue}); ; {
		list, err := templates.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = list.ResourceVersion
		}
		if list.ResourceVersion != version {
			t.Errorf("a page of version %s after one of %s", list.ResourceVersion, version)
		}
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if len(names) != 31 || names[0] != "template-0010" || names[30] != "zz-later" {
		t.Errorf("the other pages hold %d: %v", len(names), names)
	}
}

// testNoTable: what has no metadata cannot be a table.
func testNoTable(t *testing.T, f *fixture) {
	var code int
	err := f.AuthorizationV1().RESTClient().Post().Resource("selfsubjectaccessreviews").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		Body(&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "namespaces"}}}).
		Do(t.Context()).StatusCode(&code).Error()
	if code != http.StatusNotAcceptable || !apierrors.IsNotAcceptable(err) {
		t.Errorf("a review as a table: %d, %v", code, err)
	}
}

func testEveryGroup(t *testing.T, f *fixture) {
	groups, err := f.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	if len(groups.Groups) < 20 {
		t.Errorf("only %d groups", len(groups.Groups))
	}
	for _, g := range groups.Groups {
		preferred := false
		for _, v := range g.Versions {
			preferred = preferred || v.GroupVersion == g.PreferredVersion.GroupVersion
			list, err := f.Discovery().ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil || len(list.APIResources) == 0 || list.GroupVersion != v.GroupVersion {
				t.Errorf("%s: %v, %v", v.GroupVersion, list, err)
			}
		}
		if !preferred {
			t.Errorf("%s prefers %v, which it does not serve", g.Name, g.PreferredVersion)
		}
	}
}

// testAggregatedDiscovery asks for each version of the document by its header.
func testAggregatedDiscovery(t *testing.T, f *fixture) {
	for accept, want := range map[string]string{
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList": "APIGroupDiscoveryList",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1," +
			"application/json": "APIGroupDiscoveryList",
		"application/json":                  "APIGroupList",
		"application/json,application/yaml": "APIGroupList",
	} {
		code, body := f.raw(t, "GET", "/apis", accept, nil)
		var list struct {
			Kind  string
			Items []struct {
				Metadata metav1.ObjectMeta
				Versions []struct {
					Version   string
					Resources []struct{ Resource string }
				}
			}
		}
		if err := json.Unmarshal(body, &list); err != nil || code != 200 || list.Kind != want {
			t.Errorf("%s: %d %s %v", accept, code, list.Kind, err)
		}
		if want != "APIGroupDiscoveryList" {
			continue
		}
		found := map[string]bool{}
		for _, g := range list.Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					found[g.Metadata.Name+"/"+v.Version+"/"+r.Resource] = true
				}
			}
		}
		for _, name := range []string{"apps/v1/deployments", "batch/v1/cronjobs", "networking.k8s.io/v1/networkpolicies",
			"admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
			"apiextensions.k8s.io/v1/customresourcedefinitions", "apiregistration.k8s.io/v1/apiservices",
			"authentication.k8s.io/v1/selfsubjectreviews", "discovery.k8s.io/v1/endpointslices"} {
			if !found[name] {
				t.Errorf("%s lacks %s", accept, name)
			}
		}
	}
	if code, body := f.raw(t, "GET", "/api", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", nil); code != 200 ||
		!strings.Contains(string(body), `"pods"`) {
		t.Errorf("/api: %d %.300s", code, body)
	}
	client, err := rest.HTTPClientFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := request(t, client, "GET", f.config.Host+"/apis",
		"application/json;g=apidiscovery.k8s.io;v=v2alpha1;as=APIGroupDiscoveryList", nil); code != http.StatusNotAcceptable {
		t.Errorf("an unknown version of the document: %d", code)
	}
}

// testIssuerDiscovery: a service account may read the documents by which others
// verify its tokens.
func testIssuerDiscovery(t *testing.T, f *fixture) {
	admin := f.CoreV1().ServiceAccounts(f.ns)
	if _, err := admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "oidc"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(f.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + f.ns + ":oidc",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + f.ns, "system:authenticated"}}
	account := kubernetes.NewForConfigOrDie(config).Discovery().RESTClient()
	raw, err := account.Get().AbsPath("/.well-known/openid-configuration").DoRaw(t.Context())
	var doc struct {
		Issuer   string   `json:"issuer"`
		Keys     string   `json:"jwks_uri"`
		Response []string `json:"response_types_supported"`
		Subjects []string `json:"subject_types_supported"`
		Algs     []string `json:"id_token_signing_alg_values_supported"`
	}
	if e := json.Unmarshal(raw, &doc); err != nil || e != nil || doc.Issuer == "" || !strings.HasSuffix(doc.Keys, "/openid/v1/jwks") ||
		len(doc.Response) == 0 || len(doc.Subjects) == 0 || len(doc.Algs) == 0 {
		t.Errorf("the document is %s, %v", raw, err)
	}
	var keys struct{ Keys []map[string]any }
	raw, err = account.Get().AbsPath("/openid/v1/jwks").SetHeader("Accept", "application/jwk-set+json").DoRaw(t.Context())
	if e := json.Unmarshal(raw, &keys); err != nil || e != nil || len(keys.Keys) == 0 || keys.Keys[0]["kid"] == nil {
		t.Errorf("the keys are %s, %v", raw, err)
	}
}

// testReviews: what a review says of a service account is what happens to it.
func testReviews(t *testing.T, f *fixture) {
	name := "system:serviceaccount:" + f.ns + ":reviewed"
	groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + f.ns}
	config := rest.CopyConfig(f.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	attributes := &authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "list", Resource: "configmaps", Version: "v1"}
	spec := authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: name, Groups: groups}
	check := func(want bool) {
		t.Helper()
		r, err := f.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: spec},
			metav1.CreateOptions{})
		if err != nil || r.Status.Allowed != want {
			t.Errorf("review: %v, %v", r, err)
		}
		l, err := f.AuthorizationV1().LocalSubjectAccessReviews(f.ns).Create(t.Context(),
			&authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns}, Spec: spec}, metav1.CreateOptions{})
		if err != nil || l.Status.Allowed != want {
			t.Errorf("local review: %v, %v", l, err)
		}
		_, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(f.ns).List(t.Context(), metav1.ListOptions{})
		if (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("the account itself: %v, want allowed %v", err, want)
		}
	}
	check(false)
	role := metav1.ObjectMeta{Name: "lister", Namespace: f.ns}
	if _, err := f.RbacV1().Roles(f.ns).Create(t.Context(),
		&rbacv1.Role{ObjectMeta: role, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"},
			Verbs: []string{"list"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.RbacV1().RoleBindings(f.ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: role,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "lister"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "reviewed", Namespace: f.ns}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		r, err := f.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: spec},
			metav1.CreateOptions{})
		return err == nil && r.Status.Allowed, err
	})
	if err != nil {
		t.Fatalf("the role has no effect: %v", err)
	}
	check(true)
	me, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != name {
		t.Errorf("who am I: %v, %v", me, err)
	}
}
