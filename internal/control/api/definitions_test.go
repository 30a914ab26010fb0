package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestDefinitions asks of custom resources what the upstream suite asks:
// documents that follow the definitions, defaults for requests and for what is
// stored, strict fields with their words, conversion by webhook, selectable
// fields and ratcheting.
func TestDefinitions(t *testing.T) {
	env := apitest.StartEnv(t)
	for name, test := range map[string]func(*testing.T, *definitions){
		"published documents": testPublished,
		"defaults":            testDefaults,
		"field validation":    testFieldValidation,
		"typed fields":        testTypedFields,
		"conversion":          testConversion,
		"selectable fields":   testSelectableFields,
		"ratcheting":          testRatcheting,
		"of a collection":     testCollection,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, &definitions{fixture: newFixture(t, env), crds: clientset.NewForConfigOrDie(env.Config)})
		})
	}
}

type definitions struct {
	*fixture
	crds clientset.Interface
}

// define creates a definition from YAML and waits until it is served.
func (d *definitions) define(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	if _, err := d.crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.soon(t, crd.Name+" is established", func() (bool, string) {
		var err error
		if crd, err = d.crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), crd.Name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		return isEstablished(crd), fmt.Sprint(crd.Status)
	})
	return crd
}

func (d *definitions) patch(t *testing.T, name, patch string) {
	t.Helper()
	if _, err := d.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), name, types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// soon asks again until the answer is yes: the server follows definitions
// through watches and timers of the library's own.
func (d *definitions) soon(t *testing.T, what string, yes func() (bool, string)) {
	t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (ok bool, _ error) {
		ok, last = yes()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("never happened: %s; last: %.2000s", what, last)
	}
}

func (d *definitions) objects(group, version, resource string) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(d.config).Resource(schema.GroupVersionResource{Group: group, Version: version,
		Resource: resource}).Namespace(d.ns)
}

func custom(apiVersion, kind, name, more string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal([]byte(more), &u.Object); err != nil {
		panic(err)
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	return u
}

func (d *definitions) v2(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	_, body := d.raw(t, "GET", "/openapi/v2", "application/json", nil)
	var document struct{ Definitions map[string]json.RawMessage }
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	return document.Definitions
}

func version(name string, storage bool, schema string) string {
	return fmt.Sprintf("{name: %s, served: true, storage: %v, schema: {openAPIV3Schema: %s}}", name, storage, schema)
}

func definition(group, plural, kind string, versions ...string) string {
	return fmt.Sprintf("spec: {group: %s, scope: Namespaced, names: {plural: %s, kind: %s}, versions: [%s]}", group, plural, kind,
		strings.Join(versions, ", "))
}

const anything = "{type: object, x-kubernetes-preserve-unknown-fields: true}"

// testPublished: both documents have the schemas of all versions, groups and
// kinds, and follow a rename and the end of serving.
func testPublished(t *testing.T, d *definitions) {
	spec := `{type: object, description: Foo CRD for Testing, properties: {spec: {type: object, description: Specification of Foo, ` +
		`properties: {bars: {description: List of Bars, type: array, items: {type: object, required: [name], properties: {name: {type: ` +
		`string}}}}}}}}`
	crd := d.define(t, definition("pub.example.com", "foos", "Foo", version("v2", true, spec), version("v3", false, spec)))
	d.define(t, definition("pub.example.com", "waldos", "Waldo", version("v2", true, "{type: object, properties: {spec: "+anything+"}}")))
	d.define(t, definition("other.example.com", "foos", "Foo", version("v6", true, anything)))
	waitForDefinitions(t, d.fixture, "com.example.pub.v2.Foo", "com.example.pub.v3.Foo", "com.example.pub.v2.Waldo",
		"com.example.other.v6.Foo")
	defs := d.v2(t)
	if foo := string(defs["com.example.pub.v2.Foo"]); !strings.Contains(foo, "Foo CRD for Testing") ||
		!strings.Contains(foo, `"required":["name"]`) || !strings.Contains(foo, "x-kubernetes-group-version-kind") {
		t.Errorf("the published schema is %s", foo)
	}
	d.patch(t, crd.Name, `[{"op":"test","path":"/spec/versions/1/name","value":"v3"},{"op":"replace","path":"/spec/versions/1/name",`+
		`"value":"v4"}]`)
	d.soon(t, "the document follows a rename", func() (bool, string) {
		defs := d.v2(t)
		return defs["com.example.pub.v3.Foo"] == nil && defs["com.example.pub.v4.Foo"] != nil && defs["com.example.pub.v2.Foo"] != nil, ""
	})
	d.patch(t, crd.Name, `[{"op":"test","path":"/spec/versions/1/name","value":"v4"},{"op":"replace","path":"/spec/versions/1/served",`+
		`"value":false}]`)
	d.soon(t, "the document drops a version that is not served", func() (bool, string) {
		defs := d.v2(t)
		return defs["com.example.pub.v4.Foo"] == nil && defs["com.example.pub.v2.Foo"] != nil, ""
	})
	d.soon(t, "version 3 has the schema", func() (bool, string) {
		code, body := d.raw(t, "GET", "/openapi/v3/apis/pub.example.com/v2", "application/json", nil)
		return code == http.StatusOK && strings.Contains(string(body), "com.example.pub.v2.Foo"), fmt.Sprint(code)
	})
}

// testDefaults: a default that is added applies to what is stored as well, and
// stays in what was written meanwhile when the schema drops it.
func testDefaults(t *testing.T, d *definitions) {
	crd := d.define(t, definition("def.example.com", "foos", "Foo",
		version("v1", true, `{type: object, properties: {a: {type: string}, b: {type: string}}}`)))
	foos := d.objects("def.example.com", "v1", "foos")
	if _, err := foos.Create(t.Context(), custom("def.example.com/v1", "Foo", "one", `{}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	read := func(name, field string) string {
		o, err := foos.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(o.Object[field])
	}
	const properties = "/spec/versions/0/schema/openAPIV3Schema/properties/"
	d.patch(t, crd.Name, `[{"op":"add","path":"`+properties+`a/default","value":"A"}]`)
	d.soon(t, "a stored object gets the default", func() (bool, string) { got := read("one", "a"); return got == "A", got })
	if _, err := foos.Create(t.Context(), custom("def.example.com/v1", "Foo", "two", `{}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.patch(t, crd.Name, `[{"op":"remove","path":"`+properties+`a/default"},{"op":"add","path":"`+properties+`b/default","value":"B"}]`)
	d.soon(t, "the other default comes", func() (bool, string) { got := read("two", "b"); return got == "B", got })
	if got := read("two", "a"); got != "A" {
		t.Errorf("the default that was written is %q now", got)
	}
	if got := read("one", "a"); got != "<nil>" {
		t.Errorf("the default that was never written is still %q", got)
	}
}

// testConversion: objects of both stored versions come at either version.
func testConversion(t *testing.T, d *definitions) {
	hook, calls := conversionHook(t)
	crd := d.define(t, `spec:
  group: conv.example.com
  scope: Namespaced
  names: {plural: foos, kind: Foo}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: "`+*hook.URL+`", caBundle: `+
		base64(hook.CABundle)+`}}}
  versions: [`+version("v1", true, "{type: object, properties: {hostPort: {type: string}}}")+`, `+version("v2", false,
		"{type: object, properties: {host: {type: string}, port: {type: string}}}")+`]`)
	v1, v2 := d.objects("conv.example.com", "v1", "foos"), d.objects("conv.example.com", "v2", "foos")
	if _, err := v1.Create(t.Context(), custom("conv.example.com/v1", "Foo", "one", `{"hostPort":"localhost:1234"}`),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := v2.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || got.Object["host"] != "localhost" || got.Object["port"] != "1234" {
		t.Fatalf("at v2: %v, %v", got, err)
	}
	d.patch(t, crd.Name, `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace",`+
		`"path":"/spec/versions/1/storage","value":true}]`)
	n := 0
	d.soon(t, "an object is stored at v2", func() (bool, string) {
		n++
		name := fmt.Sprintf("two-%d", n)
		if _, err := v1.Create(t.Context(), custom("conv.example.com/v1", "Foo", name, `{"hostPort":"host:1"}`),
			metav1.CreateOptions{}); err != nil {
			return false, err.Error()
		}
		kv, err := d.env.Store.Client().Get(t.Context(), "/registry/conv.example.com/foos/"+d.ns+"/"+name)
		if err != nil || len(kv.Kvs) != 1 {
			return false, fmt.Sprint(kv, err)
		}
		return strings.Contains(string(kv.Kvs[0].Value), `"conv.example.com/v2"`), string(kv.Kvs[0].Value)
	})
	for _, at := range []struct {
		from   dynamic.ResourceInterface
		fields []string
	}{{v1, []string{"hostPort"}}, {v2, []string{"host", "port"}}} {
		list, err := at.from.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != n+1 {
			t.Fatalf("a mixed list: %v, %v", list, err)
		}
		for _, o := range list.Items {
			for _, f := range at.fields {
				if o.Object[f] == nil {
					t.Errorf("%s lacks %s: %v", o.GetName(), f, o.Object)
				}
			}
		}
	}
	if calls.Load() == 0 {
		t.Error("the webhook was never called")
	}
}

func testSelectableFields(t *testing.T, d *definitions) {
	v := "{name: v1, served: true, storage: true, selectableFields: [{jsonPath: .host}], schema: {openAPIV3Schema: {type: object, " +
		"properties: {host: {type: string}}}}}"
	d.define(t, definition("sel.example.com", "foos", "Foo", v))
	foos := d.objects("sel.example.com", "v1", "foos")
	for _, name := range []string{"a", "b"} {
		if _, err := foos.Create(t.Context(), custom("sel.example.com/v1", "Foo", name, `{"host":"host-`+name+`"}`),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := foos.List(t.Context(), metav1.ListOptions{FieldSelector: "host=host-a"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "a" {
		t.Errorf("by a field: %v, %v", list, err)
	}
	if err := foos.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "host=host-a"}); err != nil {
		t.Error(err)
	}
	if list, err = foos.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "b" {
		t.Errorf("what is left: %v, %v", list, err)
	}
}

// testRatcheting: what was stored before its schema became stricter may stay as
// it is while other fields change.
func testRatcheting(t *testing.T, d *definitions) {
	crd := d.define(t, definition("rat.example.com", "foos", "Foo",
		version("v1", true, "{type: object, properties: {a: {type: string}, b: {type: string}}}")))
	foos := d.objects("rat.example.com", "v1", "foos")
	if _, err := foos.Create(t.Context(), custom("rat.example.com/v1", "Foo", "old", `{"a":"longer than three"}`),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.patch(t, crd.Name, `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/a/maxLength","value":3}]`)
	d.soon(t, "new objects obey the new schema", func() (bool, string) {
		_, err := foos.Create(t.Context(), custom("rat.example.com/v1", "Foo", "new", `{"a":"longer"}`),
			metav1.CreateOptions{DryRun: []string{"All"}})
		return apierrors.IsInvalid(err), fmt.Sprint(err)
	})
	if _, err := foos.Patch(t.Context(), "old", types.MergePatchType, []byte(`{"b":"x"}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("changing another field: %v", err)
	}
	if _, err := foos.Patch(t.Context(), "old", types.MergePatchType, []byte(`{"a":"longer still"}`),
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("changing the field itself: %v", err)
	}
}

// testCollection: ten definitions are listed and deleted by their label, and
// the status of one is written.
func testCollection(t *testing.T, d *definitions) {
	all := d.crds.ApiextensionsV1().CustomResourceDefinitions()
	by := metav1.ListOptions{LabelSelector: "made=by-" + d.ns}
	for i := range 10 {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal([]byte(definition("many.example.com", fmt.Sprintf("f%ds", i), fmt.Sprintf("F%d", i),
			version("v1", true, anything))), crd); err != nil {
			t.Fatal(err)
		}
		crd.Name, crd.Labels = crd.Spec.Names.Plural+"."+crd.Spec.Group, map[string]string{"made": "by-" + d.ns}
		if _, err := all.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := all.List(t.Context(), by)
	if err != nil || len(list.Items) != 10 {
		t.Fatalf("listed %d, %v", len(list.Items), err)
	}
	got, err := all.Patch(t.Context(), "f0s.many.example.com", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/status/conditions/-","value":{"type":"StatusUpdate","status":"True","reason":"E2E"}}]`),
		metav1.PatchOptions{}, "status")
	if err != nil || got.Status.Conditions[len(got.Status.Conditions)-1].Type != "StatusUpdate" {
		t.Errorf("patching a status: %v, %v", got, err)
	}
	if err := all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, by); err != nil {
		t.Fatal(err)
	}
	d.soon(t, "they are gone", func() (bool, string) {
		list, err := all.List(t.Context(), by)
		return err == nil && len(list.Items) == 0, fmt.Sprint(len(list.Items), err)
	})
}
