package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	nameKey      = "metadata.name"
	namespaceKey = "metadata.namespace"
)

// Fields says which fields of an object a field selector may name beside name
// and namespace, and what is there. Both agree: each key is one that Values
// fills, apart from the pod's status.podIPs, which clients may send and which
// is empty on every pod.
type Fields[T object] struct {
	Keys []string
	// Aliases are old spellings of keys.
	Aliases map[string]string
	// Values puts an object's values into set.
	Values func(obj T, set fields.Set)
}

// register tells the scheme which keys are accepted. Any other is refused with
// `field label not supported: <key>`. A kind without keys of its own knows name
// and namespace, which is what a scheme does by itself.
func (f Fields[T]) register(s *runtime.Scheme, gvk schema.GroupVersionKind) error {
	if f.Values == nil {
		return nil
	}
	accepted := map[string]string{nameKey: nameKey, namespaceKey: namespaceKey}
	for _, key := range f.Keys {
		accepted[key] = key
	}
	for old, key := range f.Aliases {
		accepted[old] = key
	}
	err := s.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		key, ok := accepted[label]
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return key, value, nil
	})
	if err != nil {
		return fmt.Errorf("registering the selectable fields of %s: %w", gvk, err)
	}
	return nil
}

// GetAttrs reads an object's labels and selectable fields. It fails for an
// object of another kind.
func (k *Kind[T]) GetAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	o, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("reading selectable fields of %s: got a %T", k.GroupResource(), obj)
	}
	set := make(fields.Set, 2+len(k.SelectableFields.Keys))
	set[nameKey] = o.GetName()
	set[namespaceKey] = o.GetNamespace()
	if k.SelectableFields.Values != nil {
		k.SelectableFields.Values(o, set)
	}
	return o.GetLabels(), set, nil
}

// registerDefault registers a defaulting function for a kind and, item by item,
// for its list.
func registerDefault(s *runtime.Scheme, gvk schema.GroupVersionKind, one func(runtime.Object)) error {
	obj, err := s.New(gvk)
	if err != nil {
		return fmt.Errorf("registering defaults: %w", err)
	}
	s.AddTypeDefaultingFunc(obj, func(o any) { one(o.(runtime.Object)) })
	gvk.Kind += "List"
	list, err := s.New(gvk)
	if err != nil {
		return fmt.Errorf("registering defaults: %w", err)
	}
	s.AddTypeDefaultingFunc(list, func(o any) {
		// The items are objects, so nothing can fail.
		_ = meta.EachListItem(o.(runtime.Object), func(item runtime.Object) error {
			one(item)
			return nil
		})
	})
	return nil
}
