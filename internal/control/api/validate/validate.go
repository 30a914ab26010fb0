// Package validate says what is wrong with a built-in object before it is
// stored.
//
// The functions are pure, work on the versioned types of k8s.io/api, expect
// objects that went through defaulting, and answer with field errors whose
// paths, types and texts are what clients of the Kubernetes API know. An empty
// list means the object is good.
package validate

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errs keeps signatures short: every check answers with field errors.
type errs = field.ErrorList

// ObjectMetaUpdate checks a change of an object's metadata.
func ObjectMetaUpdate(changed, old metav1.Object) field.ErrorList {
	return append(apivalidation.ValidateObjectMetaAccessorUpdate(changed, old, field.NewPath("metadata")), metaFinalizers(changed)...)
}

// ObjectMeta checks the metadata of a new object.
func ObjectMeta(m metav1.Object, namespaced bool, name apivalidation.ValidateNameFunc) field.ErrorList {
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
	case strings.Contains(name, "/"), name == string(v1.FinalizerKubernetes), name == metav1.FinalizerOrphanDependents,
		name == metav1.FinalizerDeleteDependents:
		return nil
	}
	return errs{field.Invalid(p, name, "name is neither a standard finalizer name nor is it fully qualified")}
}
