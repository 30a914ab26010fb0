package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// tree is a configuration as nested maps; leaves are JSON values.
type tree = map[string]any

// decodeStrict reads one file. Unknown and duplicate fields are errors, and
// so are values of a wrong type.
func decodeStrict(name string, text []byte) (*kubeletv1beta1.KubeletConfiguration, error) {
	var duplicates any
	if err := yaml.UnmarshalStrict(text, &duplicates); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	raw, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	cfg := &kubeletv1beta1.KubeletConfiguration{}
	strict, err := sjson.UnmarshalStrict(raw, cfg, sjson.DisallowUnknownFields, sjson.DisallowDuplicateFields)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(strict) > 0 {
		texts := make([]string, len(strict))
		for i, err := range strict {
			texts[i] = err.Error()
		}
		return nil, fmt.Errorf("reading %s: %s", name, strings.Join(texts, "; "))
	}
	if cfg.Kind != "KubeletConfiguration" || cfg.APIVersion != kubeletv1beta1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("reading %s: kind is %q and apiVersion %q, want KubeletConfiguration and %s", name, cfg.Kind, cfg.APIVersion,
			kubeletv1beta1.SchemeGroupVersion)
	}
	return cfg, nil
}

// set turns a configuration into the tree of what it sets. As everywhere in
// this API, a zero value of a field that is no pointer means "not set".
func set(cfg *kubeletv1beta1.KubeletConfiguration) (tree, error) {
	value, _, err := setFields(reflect.ValueOf(cfg).Elem())
	if err != nil {
		return nil, err
	}
	fields, _ := value.(tree)
	delete(fields, "kind")
	delete(fields, "apiVersion")
	return fields, nil
}

var leafTypes = map[reflect.Type]bool{
	reflect.TypeFor[metav1.Duration]():   true,
	reflect.TypeFor[resource.Quantity](): true,
}

func setFields(value reflect.Value) (any, bool, error) {
	switch {
	case value.Kind() == reflect.Pointer && !value.IsNil() && isStruct(value.Type().Elem()):
		return setFields(value.Elem())
	case isStruct(value.Type()):
		fields := tree{}
		for i := range value.NumField() {
			name, inline := jsonName(value.Type().Field(i))
			inner, isSet, err := setFields(value.Field(i))
			if err != nil {
				return nil, false, err
			}
			if inline {
				if merged, ok := inner.(tree); ok {
					for key, v := range merged {
						fields[key] = v
					}
				}
				continue
			}
			if isSet {
				fields[name] = inner
			}
		}
		return fields, len(fields) > 0, nil
	case value.IsZero():
		return nil, false, nil
	}
	raw, err := json.Marshal(value.Interface())
	if err != nil {
		return nil, false, fmt.Errorf("encoding the configuration: %w", err)
	}
	var plain any
	if err := json.Unmarshal(raw, &plain); err != nil {
		return nil, false, fmt.Errorf("encoding the configuration: %w", err)
	}
	// A quantity of zero is not the zero value of its type.
	if value.Kind() == reflect.Struct && plain == "0" {
		return nil, false, nil
	}
	return plain, true, nil
}

// isStruct tells structs of fields from types that are structs inside but one
// value in the file.
func isStruct(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || leafTypes[t] {
		return false
	}
	return !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

func jsonName(field reflect.StructField) (name string, inline bool) {
	name, _, _ = strings.Cut(field.Tag.Get("json"), ",")
	return name, name == "" && field.Anonymous
}

// merge lays a layer over a tree: structs field by field, maps key by key,
// everything else as a whole. Each leaf's source is noted.
func merge(into, layer tree, source, prefix string, sources map[string]string) {
	for key, value := range layer {
		path := prefix + key
		inner, isTree := value.(tree)
		if !isTree {
			into[key] = value
			sources[path] = source
			continue
		}
		below, ok := into[key].(tree)
		if !ok {
			below = tree{}
			into[key] = below
		}
		merge(below, inner, source, path+".", sources)
	}
}

// decodeTree turns a merged tree back into a configuration.
func decodeTree(fields tree) (*kubeletv1beta1.KubeletConfiguration, error) {
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("merging the configuration: %w", err)
	}
	cfg := &kubeletv1beta1.KubeletConfiguration{}
	if strict, err := sjson.UnmarshalStrict(raw, cfg); err != nil {
		return nil, fmt.Errorf("merging the configuration: %w", err)
	} else if len(strict) > 0 {
		return nil, fmt.Errorf("merging the configuration: %w", strict[0])
	}
	cfg.Kind, cfg.APIVersion = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	return cfg, nil
}

// leaves lists the paths of all fields of the type, sorted.
func leaves(t reflect.Type, prefix string) []string {
	var paths []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, inline := jsonName(field)
		inner := field.Type
		if inner == reflect.TypeFor[metav1.TypeMeta]() {
			continue
		}
		if inline {
			paths = append(paths, leaves(inner, prefix)...)
			continue
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if isStruct(inner) {
			paths = append(paths, leaves(inner, prefix+name+".")...)
			continue
		}
		paths = append(paths, prefix+name)
	}
	sort.Strings(paths)
	return paths
}

// flatten lists the leaves of a tree with their values. Maps that are values
// (evictionHard) count as one leaf per key.
func flatten(fields tree, prefix string, out map[string]any) {
	for key, value := range fields {
		if inner, ok := value.(tree); ok {
			flatten(inner, prefix+key+".", out)
			continue
		}
		out[prefix+key] = value
	}
}
