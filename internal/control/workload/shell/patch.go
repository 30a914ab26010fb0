package shell

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
)

// Merge makes a JSON merge patch from nested maps; it cannot fail for maps of
// API values.
func Merge(v map[string]any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("making a patch: %v", err))
	}
	return b
}

// Guarded adds to a merge patch the object's UID and resource version, so that
// it fails with a conflict if the object has changed since it was read.
func Guarded(obj metav1.Object, v map[string]any) []byte {
	meta, _ := v["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		v["metadata"] = meta
	}
	meta["uid"] = obj.GetUID()
	if rv := obj.GetResourceVersion(); rv != "" {
		meta["resourceVersion"] = rv
	}
	return Merge(v)
}

// Diff makes a merge patch that turns old's field into new's, guarded as by
// Guarded. field is "status", "spec" or "metadata"; nil means no difference.
func Diff(obj metav1.Object, field string, old, new any) ([]byte, error) {
	a, err := json.Marshal(map[string]any{field: old})
	if err != nil {
		return nil, fmt.Errorf("encoding %s of %s: %w", field, Key(obj), err)
	}
	b, err := json.Marshal(map[string]any{field: new})
	if err != nil {
		return nil, fmt.Errorf("encoding %s of %s: %w", field, Key(obj), err)
	}
	p, err := jsonmergepatch.CreateThreeWayJSONMergePatch(a, b, a)
	if err != nil {
		return nil, fmt.Errorf("comparing %s of %s: %w", field, Key(obj), err)
	}
	var m map[string]any
	if err := json.Unmarshal(p, &m); err != nil {
		return nil, fmt.Errorf("reading back the patch of %s: %w", Key(obj), err)
	}
	if len(m) == 0 {
		return nil, nil
	}
	return Guarded(obj, m), nil
}

// SameUID are the conditions of a delete that must hit this very object.
func SameUID(obj metav1.Object) metav1.DeleteOptions {
	uid := obj.GetUID()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

// Owner makes a controller reference as the workload controllers set it.
func Owner(obj metav1.Object, apiVersion, kind string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: obj.GetName(), UID: obj.GetUID(),
		Controller: &yes, BlockOwnerDeletion: &yes}
}

// Adopt is a merge patch that adds a controller reference to an orphan, guarded
// so that nobody else adopted it meanwhile.
func Adopt(obj metav1.Object, owner metav1.OwnerReference) []byte {
	refs := append(append([]metav1.OwnerReference(nil), obj.GetOwnerReferences()...), owner)
	return Guarded(obj, map[string]any{"metadata": map[string]any{"ownerReferences": refs}})
}

// Release is a merge patch that removes the references to one owner.
func Release(obj metav1.Object, owner types.UID) []byte {
	refs := []metav1.OwnerReference{}
	for _, r := range obj.GetOwnerReferences() {
		if r.UID != owner {
			refs = append(refs, r)
		}
	}
	return Guarded(obj, map[string]any{"metadata": map[string]any{"ownerReferences": refs}})
}
