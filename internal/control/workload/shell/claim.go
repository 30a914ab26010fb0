package shell

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// Names of the indexes IndexOwners adds.
const (
	ByOwner  = "controller-uid"
	ByOrphan = "orphan-namespace"
)

// indexing makes looking for an index and adding it one step: controllers
// start at the same time and share informers.
var indexing sync.Mutex

// IndexOwners adds two indexes to an informer: objects by their controller's
// UID, and objects without a controller by namespace. Asking again is fine.
func IndexOwners(inf cache.SharedIndexInformer) error {
	indexing.Lock()
	defer indexing.Unlock()
	have := inf.GetIndexer().GetIndexers()
	want := cache.Indexers{}
	if have[ByOwner] == nil {
		want[ByOwner] = func(o any) ([]string, error) {
			if m, ok := o.(metav1.Object); ok {
				if c := metav1.GetControllerOfNoCopy(m); c != nil {
					return []string{string(c.UID)}, nil
				}
			}
			return nil, nil
		}
	}
	if have[ByOrphan] == nil {
		want[ByOrphan] = func(o any) ([]string, error) {
			if m, ok := o.(metav1.Object); ok && metav1.GetControllerOfNoCopy(m) == nil {
				return []string{m.GetNamespace()}, nil
			}
			return nil, nil
		}
	}
	if len(want) == 0 {
		return nil
	}
	return inf.AddIndexers(want)
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
// let go: by its selector alone. An owner being deleted adopts nothing; a
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
