package aggregation

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// foreign is a registration of a group version that a Service serves; with no
// service it is ours.
func foreign(group, version, service string, available bool) *apiregistrationv1.APIService {
	s := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version, InsecureSkipTLSVerify: true}}
	if service != "" {
		port := int32(443)
		s.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: service, Port: &port}
	}
	if available {
		s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available,
			Status: apiregistrationv1.ConditionTrue}}
	}
	return s
}

// servers resolves Services to test servers.
type servers map[string]*httptest.Server

func (s servers) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	if server := s[name]; server != nil {
		return url.Parse(server.URL)
	}
	return nil, errors.New("no endpoints for " + name)
}

func documents(t *testing.T, to servers, services ...*apiregistrationv1.APIService) *Documents {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, s := range services {
		if err := index.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	return &Documents{services: listers.NewAPIServiceLister(index), resolver: to}
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s
}

// A foreign server is asked in the name of the client, as the front proxy says it,
// and never sees the client's own credentials.
func TestForeignDocumentIsFetchedAsTheClient(t *testing.T) {
	var got http.Header
	var path string
	metrics := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got, path = r.Header, r.URL.Path
		fmt.Fprint(w, `{"openapi":"3.0.0"}`)
	})
	d := documents(t, servers{"metrics": metrics}, foreign("metrics.k8s.io", "v1beta1", "metrics", true), foreign("", "v1", "", true))
	for _, c := range []struct {
		who  user.Info
		name string
		in   string // a group it is in
	}{{&user.DefaultInfo{Name: "ann", Groups: []string{"dev"}}, "ann", "dev"}, {nil, user.Anonymous, user.AllUnauthenticated}} {
		r := httptest.NewRequest(http.MethodGet, "/openapi/v3/apis/metrics.k8s.io/v1beta1", nil)
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("X-Remote-User", "root")
		if c.who != nil {
			r = r.WithContext(genericapirequest.WithUser(r.Context(), c.who))
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Body.String() != `{"openapi":"3.0.0"}` || path != "/openapi/v3/apis/metrics.k8s.io/v1beta1" {
			t.Fatalf("as %s: %d %s, the server saw %s", c.name, w.Code, w.Body, path)
		}
		if !slices.Equal(got["X-Remote-User"], []string{c.name}) || !slices.Contains(got["X-Remote-Group"], c.in) ||
			got.Get("Authorization") != "" {
			t.Errorf("as %s: the server saw %v", c.name, got)
		}
	}
}

// Documents that no foreign server has are not found here; a server that cannot be
// reached is named.
func TestDocumentsThatCannotBeFetched(t *testing.T) {
	d := documents(t, servers{}, foreign("metrics.k8s.io", "v1beta1", "metrics", true), foreign("apps", "v1", "", true))
	for path, want := range map[string]int{
		"apis/metrics.k8s.io/v1beta1": http.StatusServiceUnavailable, "apis/apps/v1": http.StatusNotFound,
		"apis/metrics.k8s.io/v1": http.StatusNotFound, "apis/metrics.k8s.io": http.StatusNotFound, "api/v1": http.StatusNotFound,
	} {
		if got := d.Serves(path); got != (want != http.StatusNotFound) {
			t.Errorf("Serves(%q) = %v", path, got)
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi/v3/"+path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
		if want == http.StatusServiceUnavailable && !strings.Contains(w.Body.String(), "v1beta1.metrics.k8s.io") {
			t.Errorf("%s: %q does not name the registration", path, w.Body)
		}
	}
	d.certFile = t.TempDir() + "/front-proxy.crt"
	d.resolver = servers{"metrics": serve(t, http.NotFound)}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi/v3/apis/metrics.k8s.io/v1beta1", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), d.certFile) {
		t.Errorf("without the certificate: %d %q, want its path", w.Code, w.Body)
	}
}

// The list asks each available server once, believes it only of what is registered
// with it, and does without a server that fails.
func TestListOfForeignDocuments(t *testing.T) {
	var asked, unavailable atomic.Int32
	both := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"paths":{"apis/a.io/v1":{"serverRelativeURL":"/openapi/v3/apis/a.io/v1?hash=1"},
			"apis/a.io/v2":{"serverRelativeURL":"/two"},"apis/apps/v1":{"serverRelativeURL":"/stolen"}}}`)
	})
	d := documents(t, servers{"both": both,
		"broken": serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }),
		"old":    serve(t, http.NotFound),
		"away":   serve(t, func(http.ResponseWriter, *http.Request) { unavailable.Add(1) })},
		foreign("a.io", "v1", "both", true), foreign("a.io", "v2", "both", true), foreign("apps", "v1", "", true),
		foreign("b.io", "v1", "broken", true), foreign("o.io", "v1", "old", true), foreign("x.io", "v1", "away", false),
		foreign("n.io", "v1", "none", true))
	got := d.List(t.Context())
	if len(got) != 2 || got["apis/a.io/v1"].ServerRelativeURL != "/openapi/v3/apis/a.io/v1?hash=1" ||
		got["apis/a.io/v2"].ServerRelativeURL != "/two" {
		t.Errorf("listed %v, want the two documents of a.io", got)
	}
	if asked.Load() != 1 || unavailable.Load() != 0 {
		t.Errorf("asked the server of two versions %d times, the unavailable one %d times; want 1 and 0", asked.Load(), unavailable.Load())
	}
}

// Groups are listed in their order, and versions of a group by preference, all of
// them before custom resources.
func TestRegistrationsKeepTheOrderOfGroups(t *testing.T) {
	groups := []Group{{"", []string{"v1"}}, {"apps", []string{"v1", "v1beta1"}}}
	for i := range 60 {
		groups = append(groups, Group{fmt.Sprintf("g%d.k8s.io", i), []string{"v1"}})
	}
	all := local(groups)
	if all[0].Name != "v1." || all[1].Name != "v1.apps" || all[2].Name != "v1beta1.apps" {
		t.Errorf("names %s, %s, %s", all[0].Name, all[1].Name, all[2].Name)
	}
	if all[1].Spec.VersionPriority <= all[2].Spec.VersionPriority || all[1].Spec.GroupPriorityMinimum != all[2].Spec.GroupPriorityMinimum {
		t.Errorf("versions of apps: %+v, %+v", all[1].Spec, all[2].Spec)
	}
	for i := 1; i < len(all); i++ {
		a, b := all[i-1].Spec, all[i].Spec
		if a.Group != b.Group && a.GroupPriorityMinimum <= b.GroupPriorityMinimum || b.GroupPriorityMinimum <= customGroupPriority {
			t.Fatalf("%q has priority %d, %q after it %d; custom resources %d", a.Group, a.GroupPriorityMinimum, b.Group,
				b.GroupPriorityMinimum,
				customGroupPriority)
		}
	}
}

// kept is what a customGroups has registered.
type kept struct {
	names  sets.Set[string]
	writes int
}

func (k *kept) AddAPIServiceToSync(s *apiregistrationv1.APIService) {
	k.names.Insert(s.Name)
	k.writes++
}
func (k *kept) RemoveAPIServiceToSync(name string) { k.names.Delete(name); k.writes++ }

// The registered versions are those that established definitions serve, at each
// moment, and nothing is written twice.
func TestCustomGroupsFollowTheirDefinitions(t *testing.T) {
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	k := &kept{names: sets.New[string]()}
	c := &customGroups{definitions: crdlisters.NewCustomResourceDefinitionLister(index), keeper: k, log: slog.New(slog.DiscardHandler),
		known: sets.New[string]()}
	h := c.handler()
	crd := func(name, group string, established bool, versions map[string]bool) *apiextensionsv1.CustomResourceDefinition {
		d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group}}
		for v, served := range versions {
			d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Served: served})
		}
		if established {
			d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established,
				Status: apiextensionsv1.ConditionTrue}}
		}
		return d
	}
	set := func(d *apiextensionsv1.CustomResourceDefinition, want ...string) {
		t.Helper()
		if err := index.Update(d); err != nil {
			t.Fatal(err)
		}
		h.OnUpdate(nil, d)
		if !k.names.Equal(sets.New(want...)) {
			t.Errorf("registered %v, want %v", sets.List(k.names), want)
		}
	}
	set(crd("as.x.io", "x.io", false, map[string]bool{"v1": true}))
	set(crd("as.x.io", "x.io", true, map[string]bool{"v1": true, "v1alpha1": false}), "v1.x.io")
	set(crd("bs.x.io", "x.io", true, map[string]bool{"v1": true, "v2": true}), "v1.x.io", "v2.x.io")
	if k.writes != 2 {
		t.Errorf("%d writes for two versions", k.writes)
	}
	set(crd("as.x.io", "x.io", true, map[string]bool{"v1": false}), "v1.x.io", "v2.x.io") // bs serve v1 still
	gone := crd("bs.x.io", "x.io", true, nil)
	if err := index.Delete(gone); err != nil {
		t.Fatal(err)
	}
	h.OnDelete(gone)
	if k.names.Len() != 0 {
		t.Errorf("left registered: %v", sets.List(k.names))
	}
}

// A foreign server is reached at an endpoint of its Service, not at the cluster IP;
// one outside the cluster by its name.
func TestForeignServersAreReachedAtTheirEndpoints(t *testing.T) {
	shared := informers.NewSharedInformerFactory(nil, 0)
	endpoints, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		t.Fatal(err)
	}
	r := resolver{services: shared.Core().V1().Services().Lister(), endpoints: endpoints}
	service := func(name string, spec corev1.ServiceSpec) {
		if spec.Type == "" {
			spec.Type = corev1.ServiceTypeClusterIP
		}
		spec.Ports = []corev1.ServicePort{{Name: "https", Port: 443}}
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: spec}
		if err := shared.Core().V1().Services().Informer().GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	service("metrics", corev1.ServiceSpec{ClusterIP: "10.96.0.10"})
	service("idle", corev1.ServiceSpec{ClusterIP: "10.96.0.11"})
	service("outside", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "api.example.com"})
	name, port, ready := "https", int32(4443), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "metrics-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "metrics"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
	if err := shared.Discovery().V1().EndpointSlices().Informer().GetIndexer().Add(slice); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"metrics": "10.1.2.3:4443", "outside": "api.example.com:443", "idle": "", "missing": ""} {
		got, err := r.ResolveEndpoint("kube-system", name, 443)
		if (err == nil) != (want != "") || err == nil && got.Host != want {
			t.Errorf("%s: %v, %v; want %q", name, got, err, want)
		}
	}
}
