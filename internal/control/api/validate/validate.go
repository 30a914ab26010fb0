// Package validate says what is wrong with a built-in object before it is
// stored.
//
// The functions are pure, work on the versioned types of k8s.io/api, expect
// objects that went through defaulting, and answer with field errors whose
// paths, types and texts are what clients of the Kubernetes API know. An empty
// list means the object is good.
package validate

import (
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errs keeps signatures short: every check answers with field errors.
type errs = field.ErrorList

// rules is one row: what is checked on create, on update of the main resource,
// and on update of the status subresource. A nil status check means that the
// kind's status has nothing beyond its metadata to check.
type rules struct {
	create         func(obj runtime.Object) errs
	update, status func(changed, old runtime.Object) errs
}

// Create checks an object that is about to be made. A kind without rules of
// its own gets the checks of its metadata.
func Create(obj runtime.Object) field.ErrorList {
	if r, ok := kinds[reflect.TypeOf(obj)]; ok {
		return r.create(obj)
	}
	return anyMeta(obj)
}

// Update checks a change to an object through its main resource. Both must be
// of the same kind; old is what is stored.
func Update(changed, old runtime.Object) field.ErrorList {
	r, ok := kinds[reflect.TypeOf(old)]
	if !ok || reflect.TypeOf(changed) != reflect.TypeOf(old) {
		return metaUpdate(changed, old)
	}
	return append(metaUpdate(changed, old), ratcheted(r.update, changed, old)...)
}

// StatusUpdate checks a change to an object through its status subresource.
// The caller has already put back what that subresource may not change.
func StatusUpdate(changed, old runtime.Object) field.ErrorList {
	all := metaUpdate(changed, old)
	r, ok := kinds[reflect.TypeOf(old)]
	if !ok || r.status == nil || reflect.TypeOf(changed) != reflect.TypeOf(old) {
		return all
	}
	return append(all, ratcheted(r.status, changed, old)...)
}

// anyMeta checks the metadata of an object of unknown kind. Whether it belongs
// in a namespace is read off the object.
func anyMeta(obj runtime.Object) errs {
	m, err := meta.Accessor(obj)
	if err != nil {
		return errs{field.InternalError(field.NewPath("metadata"), err)}
	}
	return objectMeta(m, m.GetNamespace() != "", apivalidation.NameIsDNSSubdomain)
}

func metaUpdate(changed, old runtime.Object) errs {
	path := field.NewPath("metadata")
	c, err := meta.Accessor(changed)
	if err != nil {
		return errs{field.InternalError(path, err)}
	}
	o, err := meta.Accessor(old)
	if err != nil {
		return errs{field.InternalError(path, err)}
	}
	return append(apivalidation.ValidateObjectMetaAccessorUpdate(c, o, path), metaFinalizers(c)...)
}

func objectMeta(m metav1.Object, namespaced bool, name apivalidation.ValidateNameFunc) errs {
	return append(apivalidation.ValidateObjectMetaAccessor(m, namespaced, name, field.NewPath("metadata")), metaFinalizers(m)...)
}

func metaFinalizers(m metav1.Object) errs {
	var all errs
	for i, name := range m.GetFinalizers() {
		all = append(all, finalizerOwner(field.NewPath("metadata", "finalizers").Index(i), name)...)
	}
	return all
}

// finalizerOwner wants a finalizer without a domain to be one of Kubernetes'
// own; a name without a domain does not say who is to remove it.
func finalizerOwner(p *field.Path, name string) errs {
	switch {
	case strings.Contains(name, "/"), name == string(v1.FinalizerKubernetes), name == metav1.FinalizerOrphanDependents, name == metav1.FinalizerDeleteDependents:
		return nil
	}
	return errs{field.Invalid(p, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// pointer is a pointer to T that is also an API object with metadata.
type pointer[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// scope says whether a kind lives in a namespace.
type scope bool

const (
	namespaced scope = true
	cluster    scope = false
)

// kind makes a row. The metadata is checked by the row itself: on create by
// scope and name, on every update by the rules of immutable metadata.
type kind[T any, PT pointer[T]] struct {
	scope  scope
	name   apivalidation.ValidateNameFunc
	create func(obj PT) errs
	update func(changed, old PT) errs
	status func(changed, old PT) errs
}

func (k kind[T, PT]) rules() (reflect.Type, rules) {
	name := k.name
	if name == nil {
		name = apivalidation.NameIsDNSSubdomain
	}
	r := rules{
		create: func(obj runtime.Object) errs {
			o := obj.(PT)
			all := objectMeta(o, bool(k.scope), name)
			if k.create != nil {
				all = append(all, k.create(o)...)
			}
			return all
		},
		update: func(changed, old runtime.Object) errs {
			if k.update == nil {
				return nil
			}
			return k.update(changed.(PT), old.(PT))
		},
	}
	if k.status != nil {
		r.status = func(changed, old runtime.Object) errs { return k.status(changed.(PT), old.(PT)) }
	}
	return reflect.TypeOf(PT(nil)), r
}

// row hides the type parameters of a kind.
type row interface{ rules() (reflect.Type, rules) }

// kinds is the table of everything that has rules.
var kinds = func() map[reflect.Type]rules {
	table := map[reflect.Type]rules{}
	for _, group := range [][]row{coreKinds, workloadKinds, networkKinds, storageKinds, accessKinds, admissionKinds, otherKinds, requestKinds, bundleKinds,
		podCertificateKinds, autoscalingKinds, draKinds, flowKinds} {
		for _, k := range group {
			t, r := k.rules()
			table[t] = r
		}
	}
	return table
}()

// again makes an update check out of a create check: the new object must be
// good by itself, whatever it was before.
func again[PT any](create func(PT) errs) func(changed, old PT) errs {
	return func(changed, _ PT) errs { return create(changed) }
}
