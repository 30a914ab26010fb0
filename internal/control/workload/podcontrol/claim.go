package podcontrol

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/kube"
)

// Names of the indexes IndexOwners adds.
const (
	ByOwner  = "controller-uid"
	ByOrphan = "orphan-namespace"
)

// IndexOwners adds two indexes to an informer: objects by their controller's
// UID, and objects without a controller by namespace. Asking again is fine.
func IndexOwners(inf cache.SharedIndexInformer) error {
	return kube.Index(inf, cache.Indexers{
		ByOwner: func(o any) ([]string, error) {
			if m, ok := o.(metav1.Object); ok {
				if c := metav1.GetControllerOfNoCopy(m); c != nil {
					return []string{string(c.UID)}, nil
				}
			}
			return nil, nil
		},
		ByOrphan: func(o any) ([]string, error) {
			if m, ok := o.(metav1.Object); ok && metav1.GetControllerOfNoCopy(m) == nil {
				return []string{m.GetNamespace()}, nil
			}
			return nil, nil
		},
	})
}

// Indexed lists what an index holds under a value.
func Indexed[T any](inf cache.SharedIndexInformer, index, value string) []T {
	objs, err := inf.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil // the index is added before the informer starts
	}
	out := make([]T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Claim splits the objects an owner controls, and the orphans of its
// namespace, into those it keeps, those it should adopt and those it should
// released: by its selector alone. An owner being deleted adopts nothing; a
// dying orphan is not adopted.
func Claim[T metav1.Object](owner metav1.Object, sel labels.Selector, owned, orphans []T) (keep, adopt, release []T) {
	for _, o := range owned {
		switch {
		case sel.Matches(labels.Set(o.GetLabels())):
			keep = append(keep, o)
		case owner.GetDeletionTimestamp() == nil:
			release = append(release, o)
		}
	}
	if owner.GetDeletionTimestamp() != nil || sel.Empty() {
		return keep, nil, release
	}
	for _, o := range orphans {
		if o.GetDeletionTimestamp() == nil && o.GetNamespace() == owner.GetNamespace() && sel.Matches(labels.Set(o.GetLabels())) {
			adopt = append(adopt, o)
		}
	}
	return keep, adopt, release
}

// Owner makes a controller reference as the workload controllers set it.
func Owner(obj metav1.Object, apiVersion, kind string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: obj.GetName(), UID: obj.GetUID(),
		Controller: &yes, BlockOwnerDeletion: &yes}
}

// Adopt adds a controller reference to an orphan. Patch with kube.Unchanged, so
// that no one else adopted it meanwhile.
func Adopt(obj metav1.Object, owner metav1.OwnerReference) kube.Change {
	refs := append(append([]metav1.OwnerReference(nil), obj.GetOwnerReferences()...), owner)
	return kube.Change{Owners: &refs}
}

// Release removes the references to one owner. Patch with kube.Unchanged.
func Release(obj metav1.Object, owner types.UID) kube.Change {
	refs := []metav1.OwnerReference{}
	for _, r := range obj.GetOwnerReferences() {
		if r.UID != owner {
			refs = append(refs, r)
		}
	}
	return kube.Change{Owners: &refs}
}
