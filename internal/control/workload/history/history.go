// Package history keeps the ControllerRevisions of DaemonSets and
// StatefulSets: one per distinct pod template, numbered by last use.
package history

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sort"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// HashLabel is on every revision; upstream tools use it to compare.
const HashLabel = "controller.kubernetes.io/hash"

// Owner is what the history of one object needs to know of it.
type Owner struct {
	Object    metav1.Object
	Ref       metav1.OwnerReference
	Template  *v1.PodTemplateSpec
	Labels    map[string]string // of the template, inherited by revisions
	Limit     *int32
	Collision *int32
}

// Plan is what to do to the history.
type Plan struct {
	// Update is the revision of the present template: Existing, or one to
	// Create.
	Update *appsv1.ControllerRevision
	Create bool
	// Number is the number Update must get, 0 if it has it already.
	Number int64
	// Delete are revisions beyond the limit, oldest first.
	Delete []*appsv1.ControllerRevision
}

// Make plans the history. live names revisions in use, which are never
// deleted.
func Make(o Owner, revisions []*appsv1.ControllerRevision, live map[string]bool) Plan {
	sorted := append([]*appsv1.ControllerRevision(nil), revisions...)
	sort.SliceStable(sorted, func(i, j int) bool {
		if sorted[i].Revision != sorted[j].Revision {
			return sorted[i].Revision < sorted[j].Revision
		}
		return sorted[i].Name < sorted[j].Name
	})
	top := int64(0)
	if n := len(sorted); n > 0 {
		top = sorted[n-1].Revision
	}
	data := data(o.Template)
	var p Plan
	for _, r := range sorted {
		if equal(r.Data.Raw, data) {
			p.Update = r // the last of several equal ones
		}
	}
	switch {
	case p.Update == nil:
		p.Update, p.Create = fresh(o, data, top+1), true
	case p.Update.Revision != top:
		p.Number = top + 1
	}
	if o.Limit != nil {
		var spare []*appsv1.ControllerRevision
		for _, r := range sorted {
			if r != p.Update && !live[r.Name] {
				spare = append(spare, r)
			}
		}
		if n := len(spare) - int(*o.Limit); n > 0 {
			p.Delete = spare[:n]
		}
	}
	return p
}

func fresh(o Owner, data []byte, number int64) *appsv1.ControllerRevision {
	h := fnv.New32a()
	h.Write(data)
	if o.Collision != nil {
		h.Write([]byte(strconv.Itoa(int(*o.Collision))))
	}
	hash := rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
	labels := map[string]string{}
	for k, v := range o.Labels {
		labels[k] = v
	}
	labels[HashLabel], labels[appsv1.ControllerRevisionHashLabelKey] = hash, hash
	name := o.Object.GetName()
	if len(name) > 223 { // leave room for the hash
		name = name[:223]
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-" + hash, Namespace: o.Object.GetNamespace(), Labels: labels,
			Annotations: o.Object.GetAnnotations(), OwnerReferences: []metav1.OwnerReference{o.Ref}},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
}

// data is a template as revisions hold it: a patch that replaces the template,
// which is what `kubectl rollout undo` applies.
func data(t *v1.PodTemplateSpec) []byte {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("encoding a pod template: %v", err)) // API types always encode
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		panic(fmt.Sprintf("reading back a pod template: %v", err))
	}
	m["$patch"] = "replace"
	if raw, err = json.Marshal(map[string]any{"spec": map[string]any{"template": m}}); err != nil {
		panic(fmt.Sprintf("encoding a revision: %v", err)) // read from JSON just now
	}
	return raw
}

// Template reads a revision's template back.
func Template(r *appsv1.ControllerRevision) (*v1.PodTemplateSpec, error) {
	var in struct {
		Spec struct {
			Template v1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &in); err != nil {
		return nil, fmt.Errorf("reading revision %s: %w", controller.Key(r), err)
	}
	return &in.Spec.Template, nil
}

func equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	// The server may have reordered keys.
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, err1 := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(p, q)
}

// Perform carries a plan out and returns the present template's revision. A
// taken name is reported as a collision: the owner counts it in its status and
// tries again.
func Perform(ctx context.Context, client kubernetes.Interface, o Owner, p Plan) (update *appsv1.ControllerRevision, collision bool,
	err error) {
	api := client.AppsV1().ControllerRevisions(o.Object.GetNamespace())
	switch {
	case p.Create:
		got, err := api.Create(ctx, p.Update, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			there, getErr := api.Get(ctx, p.Update.Name, metav1.GetOptions{})
			if getErr != nil {
				return nil, false, fmt.Errorf("reading revision %s, whose name is taken: %w", p.Update.Name, getErr)
			}
			if metav1.IsControlledBy(there, o.Object) && equal(there.Data.Raw, p.Update.Data.Raw) {
				return there, false, nil
			}
			return nil, true, fmt.Errorf("creating revision %s: its name belongs to another", p.Update.Name)
		}
		if err != nil {
			return nil, false, fmt.Errorf("creating revision %s: %w", p.Update.Name, err)
		}
		return got, false, nil
	case p.Number != 0:
		got, err := kube.Patch(ctx, api, p.Update, kube.Unchanged, kube.Change{Fields: map[string]any{"revision": p.Number}})
		if err != nil {
			return nil, false, fmt.Errorf("renumbering revision %s: %w", p.Update.Name, err)
		}
		return got, false, nil
	}
	for _, r := range p.Delete {
		if err := api.Delete(ctx, r.Name, kube.SameUID(r)); err != nil && !apierrors.IsNotFound(err) {
			return nil, false, fmt.Errorf("deleting revision %s: %w", r.Name, err)
		}
	}
	return p.Update, false, nil
}
