package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// lighthouse is a foreign API server. It believes who its caller says the user
// is if the front proxy's CA signed the caller's certificate, and
// answers with what it was told.
func lighthouse(t *testing.T, env *apitest.Env) (port int32) {
	t.Helper()
	pem, err := os.ReadFile(filepath.Join(env.Dir, "pki", "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	mux := http.NewServeMux()
	answer := func(path string, body any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(body)
		})
	}
	answer("GET /apis/sea.example.com/v1", metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "sea.example.com/v1",
		APIResources: []metav1.APIResource{{Name: "lights", SingularName: "light", Kind: "Light", Namespaced: true,
			Verbs: metav1.Verbs{"get"}}},
	})
	answer("GET /openapi/v3", map[string]any{"paths": map[string]any{
		"apis/sea.example.com/v1": map[string]any{"serverRelativeURL": "/openapi/v3/apis/sea.example.com/v1?hash=1"},
		"apis/apps/v1":            map[string]any{"serverRelativeURL": "/not/theirs"},
	}})
	answer("GET /openapi/v3/apis/sea.example.com/v1", map[string]any{"openapi": "3.0.0", "info": map[string]any{"title": "lighthouse"}})
	mux.HandleFunc("GET /apis/sea.example.com/v1/namespaces/default/lights/one", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"kind": "Light", "apiVersion": "sea.example.com/v1",
			"user": r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group"), "token": r.Header.Get("Authorization"),
		})
	})
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return int32(number)
}

// available waits until the availability of a registration has a status for
// another reason than that its Service was not seen yet, and returns the
// condition.
func available(t *testing.T, client clientset.Interface, name string,
	want apiregistrationv1.ConditionStatus) apiregistrationv1.APIServiceCondition {
	t.Helper()
	w, err := client.ApiregistrationV1().APIServices().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for {
		event := next(t, w)
		if event.Type == watch.Deleted {
			t.Fatalf("%s was deleted", name)
		}
		service := event.Object.(*apiregistrationv1.APIService)
		if c := helper.GetAPIServiceConditionByType(service, apiregistrationv1.Available); c != nil && c.Status == want &&
			c.Reason != "ServiceNotFound" {
			return *c
		}
	}
}

func register(t *testing.T, config *rest.Config, port int32) *clientset.Clientset {
	t.Helper()
	core := kubernetes.NewForConfigOrDie(config).CoreV1()
	if _, err := core.Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "lighthouse"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1.nip.invalid"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := clientset.NewForConfigOrDie(config)
	if _, err := client.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.sea.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "sea.example.com", Version: "v1", GroupPriorityMinimum: 500, VersionPriority: 10, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "lighthouse", Port: ptr.To(port)},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return client
}

// TestForeignAPIServer registers a server of another group, uses it as a plain
// user, finds it in discovery and the documents, and takes it away again.
func TestForeignAPIServer(t *testing.T) {
	env := apitest.StartEnv(t)
	client := register(t, env.Config, lighthouse(t, env))
	if c := available(t, client, "v1.sea.example.com", apiregistrationv1.ConditionFalse); c.Reason != "FailedDiscoveryCheck" {
		t.Errorf("a service that leads nowhere is %+v", c)
	}
	core := kubernetes.NewForConfigOrDie(env.Config).CoreV1()
	service, err := core.Services("default").Get(t.Context(), "lighthouse", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service.Spec.ExternalName = "localhost"
	if _, err := core.Services("default").Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	available(t, client, "v1.sea.example.com", apiregistrationv1.ConditionTrue)
	var seen struct {
		User, Token string
		Groups      []string
	}
	sailor := kubernetes.NewForConfigOrDie(env.As(t, "sailor", "crew", "system:masters"))
	raw, err := sailor.RESTClient().Get().AbsPath("/apis/sea.example.com/v1/namespaces/default/lights/one").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &seen); err != nil {
		t.Fatal(err)
	}
	if seen.User != "sailor" || !slices.Contains(seen.Groups, "crew") || seen.Token != "" {
		t.Errorf("the foreign server was told %+v", seen)
	}
	stranger := kubernetes.NewForConfigOrDie(env.As(t, "stranger"))
	if _, err := stranger.RESTClient().Get().AbsPath("/apis/sea.example.com/v1/namespaces/default/lights/one").DoRaw(
		t.Context()); err == nil {
		t.Error("somebody without any right reached the foreign server")
	}
	checkDiscovery(t, env.Config, true)
	checkDocuments(t, sailor)
	if err := client.ApiregistrationV1().APIServices().Delete(t.Context(), "v1.sea.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	checkDiscovery(t, env.Config, false)
}

// checkDiscovery asks until discovery has the foreign resource, or has it not,
// in the plain and in the aggregated form.
func checkDiscovery(t *testing.T, config *rest.Config, want bool) {
	t.Helper()
	client := discovery.NewDiscoveryClientForConfigOrDie(config)
	legacy := discovery.NewDiscoveryClientForConfigOrDie(config)
	legacy.UseLegacyDiscovery = true
	for name, c := range map[string]*discovery.DiscoveryClient{"aggregated": client, "plain": legacy} {
		for {
			groups, lists, err := c.ServerGroupsAndResources()
			if t.Context().Err() != nil {
				t.Fatal(t.Context().Err())
			}
			if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
				t.Fatal(err)
			}
			listed := slices.ContainsFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "sea.example.com" })
			known := slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
				return l.GroupVersion == "sea.example.com/v1" && len(l.APIResources) == 1 && l.APIResources[0].Kind == "Light"
			})
			if groups[0].Name != "" {
				t.Fatalf("%s: the first group is %s", name, groups[0].Name)
			}
			if listed == want && known == want {
				break
			}
		}
	}
}

func checkDocuments(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	paths, err := client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string]string{
		"apis/sea.example.com/v1":        `"lighthouse"`,
		"apis/apps/v1":                   "io.k8s.api.apps.v1.Deployment",
		"apis/apiregistration.k8s.io/v1": "APIServiceSpec",
		"apis/apiextensions.k8s.io/v1":   "CustomResourceDefinition",
	} {
		document := paths[name]
		if document == nil {
			t.Errorf("no document %s", name)
			continue
		}
		body, err := document.Schema("application/json")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(string(body), part) {
			t.Errorf("%s does not speak of %s: %.200s", name, part, body)
		}
	}
	v2, err := client.Discovery().OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(v2.String(), "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService") {
		t.Error("the version 2 document knows no API services")
	}
}

// TestOwnGroupsAreRegistered: every group has its APIService, which comes back
// when it is deleted, and whom to trust is published.
func TestOwnGroupsAreRegistered(t *testing.T) {
	env := apitest.StartEnv(t)
	client := clientset.NewForConfigOrDie(env.Config).ApiregistrationV1().APIServices()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i := range list.Items {
		names[list.Items[i].Name] = helper.IsAPIServiceConditionTrue(&list.Items[i], apiregistrationv1.Available)
	}
	groups, err := kubernetes.NewForConfigOrDie(env.Config).Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			if name := version.Version + "." + group.Name; !names[name] && group.Name != "apiregistration.k8s.io" {
				t.Errorf("%s is not registered or not available", name)
			}
		}
	}
	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=v1.apps"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := client.Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for next(t, w).Type != watch.Added {
	}
	trust, err := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("kube-system").Get(context.Background(),
		"extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if trust.Data["requestheader-username-headers"] != `["X-Remote-User"]` || !strings.Contains(trust.Data["requestheader-client-ca-file"],
		"BEGIN CERTIFICATE") ||
		!strings.Contains(trust.Data["client-ca-file"], "BEGIN CERTIFICATE") {
		t.Errorf("trust is %v", trust.Data)
	}
}
