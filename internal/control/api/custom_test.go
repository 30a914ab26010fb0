package api_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func boatDefinition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList",
				ShortNames: []string{"bt"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"masts": {Type: "integer", Maximum: ptr.To(5.0), Default: &apiextensionsv1.JSON{Raw: []byte("1")}},
						}},
						"status": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
					},
				}},
			}},
		},
	}
}

// TestCustomResources defines a resource, uses it, finds it in discovery and
// the documents, and again after a restart.
func TestCustomResources(t *testing.T) {
	dir := t.TempDir()
	env := apitest.StartEnv(t, apitest.WithDir(dir))
	crds := clientset.NewForConfigOrDie(env.Config).ApiextensionsV1().CustomResourceDefinitions()
	made, err := crds.Create(t.Context(), boatDefinition(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := crds.Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.ResourceVersion, TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for !isEstablished(made) {
		if e := next(t, w); e.Type == watch.Modified {
			made = e.Object.(*apiextensionsv1.CustomResourceDefinition)
		}
	}
	boats := func() dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(env.Config).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
			Resource: "boats"}).Namespace("default")
	}
	boat := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Boat", "metadata": map[string]any{"name": "b"}, "spec": map[string]any{},
	}}
	stored, err := boats().Create(t.Context(), boat, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if masts, _, _ := unstructured.NestedInt64(stored.Object, "spec", "masts"); masts != 1 {
		t.Errorf("default is missing: %v", stored.Object)
	}
	wrong := boat.DeepCopy()
	wrong.SetName("wrong")
	unstructured.SetNestedField(wrong.Object, int64(6), "spec", "masts")
	if _, err := boats().Create(t.Context(), wrong, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("six masts: %v", err)
	}

	f := &fixture{config: env.Config}
	for _, accept := range []string{"application/json", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
		if _, body := f.raw(t, "GET", "/apis", accept, nil); !strings.Contains(string(body), `"example.com"`) {
			t.Errorf("discovery as %s does not list the group: %s", accept, body)
		}
	}
	_, body := f.raw(t, "GET", "/openapi/v3", "application/json", nil)
	var list struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatal(err)
	}
	if list.Paths["apis/apps/v1"].ServerRelativeURL == "" {
		t.Errorf("OpenAPI v3 does not list apps/v1: %s", body)
	}
	waitForDefinitions(t, f, "io.k8s.api.apps.v1.Deployment", "com.example.v1.Boat")

	env.Stop()
	env = apitest.StartEnv(t, apitest.WithDir(dir))
	if _, err := boats().Get(t.Context(), "b", metav1.GetOptions{}); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	// Deleting the definition deletes what it defined.
	crds = clientset.NewForConfigOrDie(env.Config).ApiextensionsV1().CustomResourceDefinitions()
	if err := crds.Delete(t.Context(), "boats.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, err := crds.Get(t.Context(), "boats.example.com", metav1.GetOptions{})
	if err == nil {
		w, err := crds.Watch(t.Context(), metav1.ListOptions{ResourceVersion: kept.ResourceVersion, TimeoutSeconds: ptr.To[int64](60)})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for e := next(t, w); e.Type != watch.Deleted; e = next(t, w) {
		}
	}
	got, err := env.Store.Client().Get(t.Context(), "/registry/example.com/boats/default/b")
	if err != nil || got.Count != 0 {
		t.Errorf("the boat outlived its definition: %v, %v", got, err)
	}
}

// waitForDefinitions waits for names in the version 2 document, which follows
// the definitions with a delay of the library's own.
func waitForDefinitions(t *testing.T, f *fixture, names ...string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		_, body := f.raw(t, "GET", "/openapi/v2", "application/json", nil)
		var document struct{ Definitions map[string]json.RawMessage }
		if err := json.Unmarshal(body, &document); err != nil {
			return false, err
		}
		return !slices.ContainsFunc(names, func(n string) bool { return document.Definitions[n] == nil }), nil
	})
	if err != nil {
		t.Errorf("OpenAPI v2 lacks some of %v: %v", names, err)
	}
}

func isEstablished(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
