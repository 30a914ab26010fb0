package kube

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
)

// Guard says what must still be true of an object for a patch to be taken;
// otherwise the API server answers with a conflict (see Gone).
type Guard int

// The guards.
const (
	// SameObject: it has the UID it had, so no later object of that name is
	// written to.
	SameObject Guard = iota
	// Unchanged: it also has the resource version it had, so no other write is
	// lost.
	Unchanged
)

// Change is what a patch changes of one object. Fields left nil stay as they
// are; everything else replaces what is there (a merge patch), or is merged
// into it by the keys of its lists (Strategic).
type Change struct {
	// Labels and Annotations are set; a nil value removes the key.
	Labels, Annotations map[string]*string
	// Finalizers and Owners replace the lists; they are pointers because an
	// empty list is a change.
	Finalizers *[]string
	Owners     *[]metav1.OwnerReference
	// Unfinalize takes one finalizer off, whatever others there are; it needs
	// Strategic.
	Unfinalize string
	// Spec and Status are values of the API's types or apply configurations.
	Spec, Status any
	// Fields are what a kind without spec and status has: data, endpoints, ...
	Fields map[string]any

	// Strategic makes it a strategic merge patch.
	Strategic bool
	// Subresource is "status" or empty.
	Subresource string
	// Manager is the field manager; empty is the client's.
	Manager string
}

// Conditions is a Spec or Status of which only conditions change.
type Conditions[C any] struct {
	Conditions []C `json:"conditions"`
}

// To makes a value of Change's Labels and Annotations.
func To(s string) *string { return &s }

// Texts makes Change's Labels or Annotations of a map.
func Texts(m map[string]string) map[string]*string {
	out := make(map[string]*string, len(m))
	for k, v := range m {
		out[k] = &v
	}
	return out
}

// Instead is a change of one map into another: what only the old one has goes.
func Instead(old, new map[string]string) map[string]*string {
	out := Texts(new)
	for k := range old {
		if _, stays := new[k]; !stays {
			out[k] = nil
		}
	}
	return out
}

// Body is the patch's bytes.
func (c Change) Body(obj metav1.Object, guard Guard) ([]byte, error) {
	meta := map[string]any{"uid": obj.GetUID()}
	if rv := obj.GetResourceVersion(); guard == Unchanged && rv != "" {
		meta["resourceVersion"] = rv
	}
	if c.Labels != nil {
		meta["labels"] = c.Labels
	}
	if c.Annotations != nil {
		meta["annotations"] = c.Annotations
	}
	if c.Finalizers != nil {
		meta["finalizers"] = *c.Finalizers
	}
	if c.Unfinalize != "" {
		meta["$deleteFromPrimitiveList/finalizers"] = []string{c.Unfinalize}
	}
	if c.Owners != nil {
		meta["ownerReferences"] = *c.Owners
	}
	body := map[string]any{"metadata": meta}
	if c.Spec != nil {
		body["spec"] = c.Spec
	}
	if c.Status != nil {
		body["status"] = c.Status
	}
	for k, v := range c.Fields {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encoding a patch of %s: %w", obj.GetName(), err)
	}
	return b, nil
}

// Patcher is a client of one kind, as client-go's typed clients are.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, how types.PatchType, body []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Patch writes a change of an object as long as the guard holds, and returns
// the object as it is then.
func Patch[T any](ctx context.Context, api Patcher[T], obj metav1.Object, guard Guard, c Change) (T, error) {
	var none T
	body, err := c.Body(obj, guard)
	if err != nil {
		return none, err
	}
	how := types.MergePatchType
	if c.Strategic {
		how = types.StrategicMergePatchType
	}
	var sub []string
	if c.Subresource != "" {
		sub = []string{c.Subresource}
	}
	return api.Patch(ctx, obj.GetName(), how, body, metav1.PatchOptions{FieldManager: c.Manager}, sub...)
}

// PatchStatus writes the difference between two statuses of an object that has
// not changed since it was read; changed is false, and nothing is written,
// where they are equal.
func PatchStatus[T any](ctx context.Context, api Patcher[T], obj metav1.Object, old, new any) (got T, changed bool, err error) {
	diff, err := difference(old, new)
	if err != nil {
		return got, false, fmt.Errorf("comparing the status of %s: %w", obj.GetName(), err)
	}
	if diff == nil {
		return got, false, nil
	}
	got, err = Patch(ctx, api, obj, Unchanged, Change{Status: diff, Subresource: "status"})
	return got, err == nil, err
}

// difference is the merge patch that turns old into new; nil where they are
// equal.
func difference(old, new any) (any, error) {
	a, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(new)
	if err != nil {
		return nil, err
	}
	p, err := jsonmergepatch.CreateThreeWayJSONMergePatch(a, b, a)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(p, &m); err != nil {
		return nil, err
	}
	if len(m) == 0 {
		return nil, nil
	}
	return m, nil
}

// SameUID are the conditions of a delete that must hit this very object.
func SameUID(obj metav1.Object) metav1.DeleteOptions {
	uid := obj.GetUID()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}
