package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestOperations asks of each kind what the upstream conformance suite asks
// under "should support ... API operations": three levels of discovery, then
// create, get, list in one and in all namespaces, watch, patch, update, status
// by patch and by update, delete and deletecollection.
func TestOperations(t *testing.T) {
	env := apitest.StartEnv(t)
	for _, k := range operated {
		t.Run(k.gv().Group+"/"+k.resource, func(t *testing.T) { operate(t, newFixture(t, env), k) })
	}
}

// kind is one kind with an example in YAML, in which %s is a name that is
// different in each object, %i its number and %n the namespace.
type kind struct {
	resource string
	cluster  bool
	// status is a patch to the status subresource, empty if there is none.
	status  string
	example string
}

func (k kind) gv() schema.GroupVersion {
	line, _, _ := strings.Cut(strings.TrimSpace(k.example), "\n")
	gv, err := schema.ParseGroupVersion(strings.TrimPrefix(line, "apiVersion: "))
	if err != nil {
		panic(err)
	}
	return gv
}

func (k kind) object(t *testing.T, namespace, name, label string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.NewReplacer("%s", name, "%n", namespace, "%i", name[strings.LastIndex(name, "-")+1:]).Replace(
		k.example)), &u.Object); err != nil {
		t.Fatal(err)
	}
	if u.GetName() == "" {
		u.SetName(name)
	}
	u.SetLabels(map[string]string{"special-label": label})
	return u
}

func operate(t *testing.T, f *fixture, k kind) {
	gv := k.gv()
	discovered(t, f, gv, k)
	all := dynamic.NewForConfigOrDie(f.config).Resource(gv.WithResource(k.resource))
	var here dynamic.ResourceInterface = all
	if !k.cluster {
		here = all.Namespace(f.ns)
	}
	label := f.ns // namespaces have generated names
	selector := metav1.ListOptions{LabelSelector: "special-label=" + label}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}

	list, err := all.List(t.Context(), selector)
	check("listing nothing", err)
	w, err := all.Watch(t.Context(), metav1.ListOptions{LabelSelector: selector.LabelSelector, ResourceVersion: list.GetResourceVersion(),
		TimeoutSeconds: ptr.To[int64](60)})
	check("watching", err)
	defer w.Stop()
	marked, err := all.Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true, SendInitialEvents: ptr.To(true),
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, LabelSelector: selector.LabelSelector,
		TimeoutSeconds: ptr.To[int64](60)})
	check("watching with bookmarks", err)
	if e := next(t, marked); e.Type != watch.Bookmark {
		t.Errorf("the watch with bookmarks says %v of %s, want the end of the initial events", e.Type, name(e))
	}
	marked.Stop()
	var made []*unstructured.Unstructured
	for i := range 3 {
		// A watch cache asks etcd for its progress like this; a watch that
		// wants no bookmarks must not hear of it.
		check("asking for progress", f.env.Store.Client().RequestProgress(t.Context()))
		o, err := here.Create(t.Context(), k.object(t, f.ns, fmt.Sprintf("%s-%d", label, i), label),
			metav1.CreateOptions{FieldManager: "t"})
		check("creating", err)
		made = append(made, o)
		for e := next(t, w); name(e) != o.GetName(); e = next(t, w) {
			if e.Type != watch.Modified { // controllers write to some kinds at once
				t.Errorf("the watch says %v of %s", e.Type, name(e))
			}
		}
	}
	first := made[0].GetName()
	if _, err := here.Create(t.Context(), k.object(t, f.ns, label+"-0", label), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) &&
		!strings.Contains(fmt.Sprint(err), "already") {
		t.Errorf("creating it twice: %v", err)
	}
	got, err := here.Get(t.Context(), first, metav1.GetOptions{})
	check("reading", err)
	if got.GetUID() != made[0].GetUID() || len(got.GetManagedFields()) == 0 {
		t.Errorf("read %v", got.Object["metadata"])
	}
	for _, from := range []dynamic.ResourceInterface{here, all} {
		list, err := from.List(t.Context(), selector)
		check("listing", err)
		if len(list.Items) != 3 {
			t.Errorf("listed %d objects", len(list.Items))
		}
	}
	tableAndProtobuf(t, f, k)

	// Changes. Controllers of the server's own may write in between.
	patched, err := here.Patch(t.Context(), first, types.MergePatchType, []byte(`{"metadata":{"annotations":{"patched":"true"}}}`),
		metav1.PatchOptions{})
	check("patching", err)
	if patched.GetAnnotations()["patched"] != "true" {
		t.Errorf("patched: %v", patched.GetAnnotations())
	}
	if e := nextOf(t, w, watch.Modified, "patched"); name(e) != first {
		t.Errorf("the watch says %v of %s", e.Type, name(e))
	}
	annotations := patched.GetAnnotations()
	annotations["updated"] = "true"
	patched.SetAnnotations(annotations)
	updated, err := here.Update(t.Context(), patched, metav1.UpdateOptions{})
	check("updating", err)
	if updated.GetAnnotations()["updated"] != "true" {
		t.Errorf("updated: %v", updated.GetAnnotations())
	}
	nextOf(t, w, watch.Modified, "updated")
	if k.status != "" {
		status(t, here, updated, k)
	}
	otherUID(t, here, updated)

	check("deleting", here.Delete(t.Context(), first, metav1.DeleteOptions{}))
	if o, err := here.Get(t.Context(), first, metav1.GetOptions{}); err == nil && o.GetDeletionTimestamp() == nil || err != nil &&
		!apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
	check("deleting the collection", here.DeleteCollection(t.Context(), metav1.DeleteOptions{}, selector))
	list, err = all.List(t.Context(), selector)
	check("listing what is left", err)
	for _, o := range list.Items {
		if o.GetDeletionTimestamp() == nil {
			t.Errorf("%s is left", o.GetName())
		}
	}
}

func name(e watch.Event) string {
	if m, ok := e.Object.(metav1.Object); ok {
		return m.GetName()
	}
	return fmt.Sprint(e.Object)
}

// nextOf is the next event of an object with the annotation.
func nextOf(t *testing.T, w watch.Interface, typ watch.EventType, annotation string) watch.Event {
	t.Helper()
	for {
		e := next(t, w)
		if m, ok := e.Object.(metav1.Object); ok && e.Type == typ && m.GetAnnotations()[annotation] != "" {
			return e
		}
	}
}

// status patches, reads and updates the status subresource.
func status(t *testing.T, here dynamic.ResourceInterface, o *unstructured.Unstructured, k kind) {
	t.Helper()
	body := []byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":` + k.status + `}`)
	got, err := here.Patch(t.Context(), o.GetName(), types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("patching the status: %v", err)
	}
	var want any
	if err := json.Unmarshal([]byte(k.status), &want); err != nil {
		t.Fatal(err)
	}
	for key := range want.(map[string]any) {
		if got.Object["status"] == nil || got.Object["status"].(map[string]any)[key] == nil {
			t.Errorf("the patched status lacks %s: %v", key, got.Object["status"])
		}
	}
	// A write to the status of these keeps all metadata, as upstream's
	// strategies (and the library of APIServices) do.
	keeps := slices.Contains([]string{"apiservices", "flowschemas", "prioritylevelconfigurations", "validatingadmissionpolicies",
		"volumeattachments",
		"resourceclaims"}, k.resource)
	if patched := got.GetAnnotations()["patchedstatus"] == "true"; patched == keeps {
		t.Errorf("the annotation was patched with the status: %v, want %v", patched, !keeps)
	}
	if got, err = here.Get(t.Context(), o.GetName(), metav1.GetOptions{}, "status"); err != nil {
		t.Fatalf("reading the status: %v", err)
	}
	if _, err = here.UpdateStatus(t.Context(), got, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		t.Errorf("updating the status: %v", err)
	}
}

// otherUID writes to an object under the UID of another one. To a PATCH the
// answer is that the field is immutable, to a PUT that a precondition failed:
// so says the library that all API servers are made of.
func otherUID(t *testing.T, here dynamic.ResourceInterface, o *unstructured.Unstructured) {
	t.Helper()
	_, err := here.Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(`{"metadata":{"uid":"another","labels":{"x":"y"}}}`),
		metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.uid") || !strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("a patch with another UID: %v", err)
	}
	o = o.DeepCopy()
	o.SetUID("another")
	o.SetResourceVersion("")
	if _, err = here.Update(t.Context(), o, metav1.UpdateOptions{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(),
		"UID in precondition: another") {
		t.Errorf("an update with another UID: %v", err)
	}
}

// discovered looks for the kind in /apis, /apis/GROUP and /apis/GROUP/VERSION.
func discovered(t *testing.T, f *fixture, gv schema.GroupVersion, k kind) {
	t.Helper()
	if gv.Group != "" {
		groups, err := f.Discovery().ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		has := func(g metav1.APIGroup) bool {
			return g.Name == gv.Group && slices.ContainsFunc(g.Versions,
				func(v metav1.GroupVersionForDiscovery) bool { return v.GroupVersion == gv.String() })
		}
		if !slices.ContainsFunc(groups.Groups, has) {
			t.Errorf("/apis lacks %s", gv)
		}
		var group metav1.APIGroup
		if err := f.Discovery().RESTClient().Get().AbsPath("/apis/" + gv.Group).Do(t.Context()).Into(&group); err != nil || !has(group) ||
			group.PreferredVersion.Version == "" {
			t.Errorf("/apis/%s is %v, %v", gv.Group, group, err)
		}
	}
	resources, err := f.Discovery().ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{k.resource: {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}}
	if k.status != "" {
		want[k.resource+"/status"] = []string{"get", "patch", "update"}
	}
	for _, r := range resources.APIResources {
		for _, verb := range want[r.Name] {
			if !slices.Contains(r.Verbs, verb) {
				t.Errorf("%s lacks %s: %v", r.Name, verb, r.Verbs)
			}
		}
		if r.Namespaced == k.cluster && r.Name == k.resource {
			t.Errorf("%s: namespaced is %v", r.Name, r.Namespaced)
		}
		delete(want, r.Name)
	}
	if len(want) != 0 {
		t.Errorf("%s lacks %v", gv, want)
	}
}

// tableAndProtobuf lists as kubectl and as typed clients do.
func tableAndProtobuf(t *testing.T, f *fixture, k kind) {
	t.Helper()
	path := "/apis/" + k.gv().String()
	if k.gv().Group == "" {
		path = "/api/v1"
	}
	if !k.cluster {
		path += "/namespaces/" + f.ns
	}
	path += "/" + k.resource
	code, body := f.raw(t, "GET", path, "application/json;as=Table;v=v1;g=meta.k8s.io", nil)
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || code != 200 || len(table.Rows) < 3 || len(table.ColumnDefinitions) == 0 {
		t.Errorf("as a table: %d %v %s", code, err, body)
	}
	if k.gv().Group == "apiextensions.k8s.io" || k.gv().Group == "apiregistration.k8s.io" {
		return // the libraries that serve these have their own types
	}
	code, body = f.raw(t, "GET", path, runtime.ContentTypeProtobuf, nil)
	if code != 200 || !strings.HasPrefix(string(body), "k8s\x00") {
		t.Errorf("as protobuf: %d %.80q", code, body)
	}
}
