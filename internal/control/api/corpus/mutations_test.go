package corpus_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// mutation is one way to break a field: the value it gets, or removal.
type mutation struct {
	name   string
	value  any
	remove bool
	// updateOnly leaves the mutation out of new objects, where it would only be
	// another valid value.
	updateOnly bool
}

var (
	absent = mutation{name: "absent", remove: true}
	long   = strings.Repeat("a", 300)
)

const bad = "Bad_value !"

// mutations are those of a field of type t that has the value v.
func mutations(t reflect.Type, v any) []mutation {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return []mutation{absent, {name: "zero", value: "0"}, {name: "negative", value: "-1"}, {name: "fraction", value: "1m"},
			{name: "changed", value: "3Gi", updateOnly: true}}
	case reflect.TypeFor[intstr.IntOrString]():
		return []mutation{absent, {name: "zero", value: 0}, {name: "negative", value: -1}, {name: "percent", value: "150%"},
			{name: "bad", value: bad}, {name: "changed", value: 7, updateOnly: true}}
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return []mutation{absent, {name: "changed", value: "2027-01-01T00:00:00.000000Z", updateOnly: true}}
	case reflect.TypeFor[runtime.RawExtension]():
		return []mutation{absent, {name: "text", value: "x"}}
	}
	switch t.Kind() {
	case reflect.String:
		text, _ := v.(string)
		return []mutation{absent, {name: "empty", value: ""}, {name: "long", value: long}, {name: "bad", value: bad},
			{name: "changed", value: text + "x", updateOnly: true}}
	case reflect.Bool:
		return []mutation{absent, {name: "flipped", value: v != true}}
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		n, _ := v.(float64)
		return []mutation{absent, {name: "zero", value: 0}, {name: "negative", value: -1}, {name: "large", value: 1<<31 - 1},
			{name: "changed", value: n + 1, updateOnly: true}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return []mutation{absent, {name: "changed", value: "eA==", updateOnly: true}, {name: "short", value: "eA=="}}
		}
		all := []mutation{absent, {name: "empty", value: []any{}}}
		if list, _ := v.([]any); len(list) > 0 {
			all = append(all, mutation{name: "twice", value: append(slices.Clone(list), list[0])})
		}
		return all
	case reflect.Map:
		return append([]mutation{absent, {name: "empty", value: map[string]any{}}}, entries(t, v)...)
	case reflect.Struct:
		return []mutation{absent, {name: "empty", value: map[string]any{}}}
	}
	panic(fmt.Sprintf("no mutations of %v", t))
}

// entries break the keys and values of a map.
func entries(t reflect.Type, v any) []mutation {
	m, _ := v.(map[string]any)
	var some any = sample(t.Elem())
	for _, value := range m {
		some = value
	}
	all := []mutation{{name: "badkey", value: map[string]any{bad: some}}, {name: "longkey", value: map[string]any{long: some}}}
	for key := range m {
		if t.Elem().Kind() == reflect.String {
			all = append(all, mutation{name: "badvalue", value: map[string]any{key: bad}})
		}
		break // maps of the base objects have one entry where it matters which
	}
	return all
}

// sets are the mutations of a field of type t that the base object leaves out.
func sets(t reflect.Type) []mutation {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString]():
		return []mutation{{name: "negative", value: sample(t)}}
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return []mutation{{name: "bad", value: bad}}
	case reflect.Bool:
		return []mutation{{name: "true", value: true}}
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		return []mutation{{name: "zero", value: 0}, {name: "negative", value: -1}, {name: "large", value: 1<<31 - 1}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return []mutation{{name: "short", value: "eA=="}}
		}
		return []mutation{{name: "bad", value: []any{sample(t.Elem())}}}
	case reflect.Map:
		return []mutation{{name: "badkey", value: map[string]any{bad: sample(t.Elem())}}}
	case reflect.Struct:
		return []mutation{{name: "empty", value: map[string]any{}}}
	}
	panic(fmt.Sprintf("no mutations of %v", t))
}

// sample is a value that decodes as t and means little.
func sample(t reflect.Type) any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return "-1"
	case reflect.TypeFor[intstr.IntOrString]():
		return -1
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "2026-01-01T00:00:00.000000Z"
	}
	switch t.Kind() {
	case reflect.String:
		return bad
	case reflect.Bool:
		return true
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		return -1
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "eA=="
		}
		return []any{}
	}
	return map[string]any{}
}

// site is a field of an object: where it is and what may become of it.
type site struct {
	path []any // string for a field or a key, int for an index
	muts []mutation
}

func (s site) String() string {
	var b strings.Builder
	for i, p := range s.path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		case string:
			if i > 0 {
				b.WriteString(".")
			}
			b.WriteString(p)
		}
	}
	return b.String()
}

// sites lists the fields below v, which is an object of type t, in the order of
// the type. A pod's own fields are broken once, in Pods; the specs inside
// templates keep theirs.
func sites(t reflect.Type, v any, path []any, inPod bool) (out []site) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	here := slices.Clone(path)
	switch t {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Time](),
		reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[runtime.RawExtension](), reflect.TypeFor[metav1.FieldsV1]():
		return nil
	case reflect.TypeFor[corev1.PodSpec]():
		if !inPod {
			return nil
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		fields, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		for _, f := range fieldsOf(t) {
			at := append(slices.Clone(here), f.name)
			if skipped(t, f.name, len(path)) {
				continue
			}
			value, there := fields[f.name]
			if !there {
				if s := sets(f.typ); len(s) > 0 {
					out = append(out, site{path: at, muts: s})
				}
				continue
			}
			out = append(out, site{path: at, muts: mutations(f.typ, value)})
			out = append(out, sites(f.typ, value, at, inPod)...)
		}
	case reflect.Slice:
		list, _ := v.([]any)
		for i, item := range list {
			at := append(slices.Clone(here), i)
			if t.Elem().Kind() == reflect.String && i == 0 {
				out = append(out, site{path: at, muts: mutations(t.Elem(), item)[1:]})
			}
			out = append(out, sites(t.Elem(), item, at, inPod)...)
		}
	case reflect.Map:
		m, _ := v.(map[string]any)
		for _, key := range slices.Sorted(keysOf(m)) {
			at := append(slices.Clone(here), key)
			if t.Elem().Kind() != reflect.String {
				out = append(out, site{path: at, muts: mutations(t.Elem(), m[key])[1:]})
			}
			out = append(out, sites(t.Elem(), m[key], at, inPod)...)
		}
	}
	return out
}

// skipped are fields of templates that nobody reads: most metadata, and the
// status of a claim.
func skipped(t reflect.Type, name string, depth int) bool {
	switch {
	case depth <= 1:
		return false
	case t == reflect.TypeFor[metav1.ObjectMeta]():
		return name != "name" && name != "labels" && name != "annotations" && name != "finalizers"
	}
	return t == reflect.TypeFor[corev1.PersistentVolumeClaim]() && name == "status"
}

func keysOf(m map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type jsonField struct {
	name string
	typ  reflect.Type
}

// fieldsOf are the fields of a struct as JSON names them, those of embedded
// structs among them.
func fieldsOf(t reflect.Type) (out []jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		switch {
		case typ == reflect.TypeFor[metav1.TypeMeta](), name == "-":
		case name == "" && (strings.Contains(rest, "inline") || f.Anonymous):
			out = append(out, fieldsOf(typ)...)
		case name != "":
			out = append(out, jsonField{name, f.Type})
		}
	}
	return out
}

// broken is a copy of obj with one field changed; it says false if obj has
// nothing at the path.
func broken(obj map[string]any, path []any, m mutation) (map[string]any, bool) {
	text, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	return out, set(out, path, m)
}

func set(in any, path []any, m mutation) bool {
	switch key := path[0].(type) {
	case int:
		list, _ := in.([]any)
		switch {
		case key >= len(list):
			return false
		case len(path) > 1:
			return set(list[key], path[1:], m)
		}
		list[key] = m.value
	case string:
		fields, ok := in.(map[string]any)
		switch {
		case !ok:
			return false
		case len(path) > 1:
			return set(fields[key], path[1:], m)
		case m.remove:
			delete(fields, key)
		default:
			fields[key] = m.value
		}
	}
	return true
}
