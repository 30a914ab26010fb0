package corpus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// sample is a base object with the kind it is of.
type base struct {
	kind registry.Resource
	name string
	// raw is the object after defaulting, as JSON; stored is what the server
	// keeps of it, and kept the same as JSON.
	raw    map[string]any
	stored runtime.Object
	kept   map[string]any
}

var (
	shared = scheme.Shared()
	strict = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, shared.Scheme, shared.Scheme,
		serializer.SerializerOptions{Strict: true})
)

// hub decodes as the server does: strictly, completed, and as the type that is stored.
func hub(k registry.Resource, text []byte) (runtime.Object, error) {
	obj, _, err := strict.Decode(text, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	shared.Scheme.Default(obj)
	if k.Info().StoredAs.Empty() {
		return obj, nil
	}
	out, err := shared.Scheme.UnsafeConvertToVersion(obj, schema.GroupVersion{Group: k.Info().GroupVersion.Group,
		Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

func decode(k registry.Resource, raw map[string]any) (runtime.Object, error) {
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return hub(k, text)
}

func contextOf(raw map[string]any) context.Context {
	ns, _ := raw["metadata"].(map[string]any)["namespace"].(string)
	return genericrequest.WithNamespace(genericrequest.NewContext(), ns)
}

// create takes a new object through the whole chain up to the store.
func create(b *base, raw map[string]any) (runtime.Object, error) {
	obj, err := decode(b.kind, raw)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(obj.(metav1.Object))
	return obj, rest.BeforeCreate(b.kind.Strategy(shared.Scheme), contextOf(b.raw), obj)
}

// update takes a change of the stored object there.
func update(b *base, strategy rest.RESTUpdateStrategy, raw map[string]any, stored runtime.Object) error {
	obj, err := decode(b.kind, raw)
	if err != nil {
		return err
	}
	m, old := obj.(metav1.Object), stored.(metav1.Object)
	m.SetResourceVersion(old.GetResourceVersion())
	m.SetUID(old.GetUID())
	return rest.BeforeUpdate(strategy, contextOf(b.raw), obj, stored)
}

func readBases(t *testing.T) []*base {
	t.Helper()
	data, err := os.ReadFile("testdata/base.yaml")
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[schema.GroupVersionKind]registry.Resource{}
	for _, k := range kinds.All() {
		byKind[k.Info().GroupVersion.WithKind(k.Info().Kind)] = k
	}
	var all []*base
	for _, doc := range strings.Split(string(data), "\n---\n") {
		text, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if b := readBase(t, byKind, text); b != nil {
			all = append(all, b)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return all
}

func readBase(t *testing.T, byKind map[schema.GroupVersionKind]registry.Resource, text []byte) *base {
	t.Helper()
	obj, gvk, err := strict.Decode(text, nil, nil)
	if err != nil {
		t.Errorf("%v\n%.100s", err, text)
		return nil
	}
	b := &base{kind: byKind[*gvk], name: gvk.Kind + " " + obj.(metav1.Object).GetName()}
	if b.kind == nil {
		t.Fatalf("%v is not served", gvk)
	}
	shared.Scheme.Default(obj)
	b.raw = asJSON(t, obj, *gvk)
	if b.stored, err = create(b, b.raw); err != nil {
		t.Errorf("the base object %s: %v", b.name, err)
		return nil
	}
	m := b.stored.(metav1.Object)
	m.SetResourceVersion("1")
	m.SetUID(types.UID("stored-uid"))
	// The status came by itself, later.
	if whole, err := decode(b.kind, b.raw); err != nil {
		t.Fatal(err)
	} else if status := reflect.ValueOf(whole).Elem().FieldByName("Status"); status.IsValid() {
		reflect.ValueOf(b.stored).Elem().FieldByName("Status").Set(status)
	}
	if b.kept = b.raw; b.kind.Info().StoredAs.Empty() {
		b.kept = asJSON(t, b.stored, *gvk)
	}
	return b
}

func asJSON(t *testing.T, obj runtime.Object, gvk schema.GroupVersionKind) (out map[string]any) {
	t.Helper()
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// verdict is an answer in a few words: "ok", or type and field of each cause.
func verdict(err error, at string) string {
	if err == nil {
		return "ok"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "500 " + err.Error()
	}
	s := status.Status()
	if s.Code != 422 || s.Details == nil || len(s.Details.Causes) == 0 {
		return fmt.Sprintf("%d %s", s.Code, s.Reason)
	}
	var causes []string
	for _, c := range s.Details.Causes {
		field := c.Field
		if field == at {
			field = "."
		} else if rest, ok := strings.CutPrefix(field, at+"."); ok {
			field = "." + rest
		}
		causes = append(causes, strings.TrimPrefix(string(c.Type), "FieldValue")+" "+field)
	}
	slices.Sort(causes)
	return strings.ReplaceAll(strings.Join(slices.Compact(causes), ", "), long, "LONG")
}

// answers collects mutations by their verdict, in the order they came.
type answers struct {
	order []string
	by    map[string][]string
}

func (a *answers) add(verdict, mutation string) {
	if a.by == nil {
		a.by = map[string][]string{}
	}
	if a.by[verdict] == nil {
		a.order = append(a.order, verdict)
	}
	a.by[verdict] = append(a.by[verdict], mutation)
}

func (a *answers) String() string {
	var parts []string
	for _, v := range a.order {
		parts = append(parts, strings.Join(a.by[v], " ")+" -> "+v)
	}
	return strings.Join(parts, "; ")
}

// judge breaks each field of one object and writes down what the server says.
func judge(t *testing.T, b *base, out *strings.Builder) {
	t.Helper()
	info := b.kind.Info()
	fmt.Fprintf(out, "\n== %s %s\n", info.GroupVersion, b.name)
	strategy, status := b.kind.Strategy(shared.Scheme), b.kind.StatusStrategy(shared.Scheme)
	typ := shared.Scheme.AllKnownTypes()[info.GroupVersion.WithKind(info.Kind)]
	for _, s := range sites(typ, b.raw, nil, info.Kind == "Pod") {
		at := s.String()
		if ignored(b, s) {
			continue
		}
		ofStatus := s.path[0] == "status"
		if ofStatus && status == nil {
			continue
		}
		var created, updated answers
		for _, m := range s.muts {
			changed, there := broken(b.kept, s.path, m)
			if ofStatus {
				updated.add(verdict(update(b, status, changed, b.stored.DeepCopyObject()), at), m.name)
				continue
			}
			if !m.updateOnly {
				raw, _ := broken(b.raw, s.path, m)
				_, err := create(b, raw)
				created.add(verdict(err, at), m.name)
				if err != nil {
					continue
				}
			}
			if !there || s.path[0] == "metadata" && s.path[1] == "name" {
				continue // the server did not keep the field; of an update, the name in the URL counts
			}
			updated.add(verdict(update(b, strategy, changed, b.stored.DeepCopyObject()), at), m.name)
		}
		if !ofStatus {
			fmt.Fprintf(out, "%s: %s\n", at, &created)
		}
		if text := updated.String(); ofStatus || len(updated.order) > 1 || len(updated.order) == 1 && updated.order[0] != "ok" {
			if ofStatus {
				fmt.Fprintf(out, "%s: %s\n", at, text)
			} else {
				fmt.Fprintf(out, "  update: %s\n", text)
			}
		}
	}
}

// ignored are fields whose answers say nothing of the kind: the metadata of
// most (ConfigMap stands for all), all but the name, and what the server itself
// sets.
func ignored(b *base, s site) bool {
	if s.path[0] == "status" && len(s.path) == 1 {
		return true
	}
	if s.path[0] != "metadata" {
		return false
	}
	if len(s.path) == 1 {
		return true
	}
	switch s.path[1] {
	case "name", "generateName":
		return false
	case "labels", "annotations", "finalizers", "ownerReferences":
		return b.kind.Info().Kind != "ConfigMap"
	}
	return true
}

// TestCorpus breaks each field of valid objects of each kind and compares the
// answers with those that were read and accepted before.
func TestCorpus(t *testing.T) {
	groups := map[string][]*base{}
	for _, b := range readBases(t) {
		group, _, _ := strings.Cut(b.kind.Info().GroupVersion.Group, ".")
		if group == "" {
			group = "core"
		}
		if b.kind.Info().Kind == "Pod" {
			group = "pods"
		}
		groups[group] = append(groups[group], b)
	}
	for group, bases := range groups {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			out.WriteString("What is answered when one field of a valid object is broken: mutations -> ok, or the causes (\".\" is the " +
				"field).\n")
			for _, b := range bases {
				judge(t, b, &out)
			}
			golden.Check(t, "testdata/"+group+".txt", out.String())
		})
	}
}

// TestEachKindHasABase keeps the corpus whole: a kind that is served needs a
// valid object here.
func TestEachKindHasABase(t *testing.T) {
	seen := map[schema.GroupVersionKind]bool{}
	for _, b := range readBases(t) {
		i := b.kind.Info()
		seen[i.GroupVersion.WithKind(i.Kind)] = true
	}
	for _, k := range kinds.All() {
		if i := k.Info(); !seen[i.GroupVersion.WithKind(i.Kind)] {
			t.Errorf("%s has no valid object in testdata/base.yaml: add one, run the test with -rewrite and read what the new kind answers",
				i.GroupVersion.WithKind(i.Kind))
		}
	}
}

// TestUnchanged writes each base object back as it is stored, and its status:
// nothing may be refused.
func TestUnchanged(t *testing.T) {
	for _, b := range readBases(t) {
		if err := update(b, b.kind.Strategy(shared.Scheme), b.kept, b.stored.DeepCopyObject()); err != nil {
			t.Errorf("%s written back: %v", b.name, err)
		}
		if status := b.kind.StatusStrategy(shared.Scheme); status != nil {
			if err := update(b, status, b.kept, b.stored.DeepCopyObject()); err != nil {
				t.Errorf("the status of %s written back: %v", b.name, err)
			}
		}
	}
}

// TestUnknown wants a field that no type knows to be refused wherever it is
// (strict decoding).
func TestUnknown(t *testing.T) {
	for _, b := range readBases(t) {
		info := b.kind.Info()
		typ := shared.Scheme.AllKnownTypes()[info.GroupVersion.WithKind(info.Kind)]
		for _, s := range append(sites(typ, b.raw, nil, true), site{}) {
			parent := append(slices.Clone(s.path[:max(len(s.path)-1, 0)]), "noSuchField")
			if len(s.path) > 0 {
				if _, ok := s.path[len(s.path)-1].(string); !ok {
					continue
				}
			}
			if inMap(b.raw, parent, typ) {
				continue
			}
			raw, _ := broken(b.raw, parent, mutation{value: "x"})
			if _, err := decode(b.kind, raw); !apierrors.IsBadRequest(err) {
				t.Errorf("%s with %s: %v", b.name, site{path: parent}, err)
			}
		}
	}
}

// inMap says whether the path ends in a map, whose keys are free.
func inMap(_ any, path []any, t reflect.Type) bool {
	for _, p := range path[:len(path)-1] {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch {
		case t.Kind() == reflect.Struct:
			fields := fieldsOf(t)
			i := slices.IndexFunc(fields, func(f jsonField) bool { return f.name == p })
			if i < 0 {
				return true
			}
			t = fields[i].typ
		default:
			t = t.Elem()
		}
	}
	return t.Kind() == reflect.Map
}
