// Package defaults fills the fields that a client left out of a built-in
// object, so that what is stored and served is complete.
//
// The functions work on the versioned types of k8s.io/api (berth has no
// internal types), are pure and idempotent: an object that went through once
// does not change when it goes through again. They run on every decode, so
// nothing here may depend on a clock, and nothing may be set here that a later
// write must be able to empty (a Namespace's spec.finalizers, for example, are
// set when it is created, by the resource's strategy).
package defaults

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers the defaulting functions of every built-in kind and of
// its list with s. The kinds themselves must be registered by the caller, in
// any order. The error is reserved for registrations that can fail; today
// there are none.
func AddToScheme(s *runtime.Scheme) error {
	addCore(s)
	addApps(s)
	addBatch(s)
	addAutoscaling(s)
	addNetworking(s)
	addStorage(s)
	addPolicy(s)
	addRegistration(s)
	addFlow(s)
	addResource(s)
	addCertificates(s)
	return nil
}

// object is a pointer to T that is also an API object.
type object[T any] interface {
	*T
	runtime.Object
}

// kind registers fn for T and, item by item, for its list L.
func kind[T, L any, PT object[T], PL object[L]](s *runtime.Scheme, fn func(*T), items func(*L) []T) {
	single[T, PT](s, fn)
	single[L, PL](s, func(list *L) {
		all := items(list)
		for i := range all {
			fn(&all[i])
		}
	})
}

// single registers fn for a type that has no list, or for a list.
func single[T any, PT object[T]](s *runtime.Scheme, fn func(*T)) {
	s.AddTypeDefaultingFunc(PT(new(T)), func(o any) { fn(o.(*T)) })
}

// fill points *p at a copy of v if nothing is there.
func fill[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// zero sets *p to v if it holds the zero value.
func zero[T comparable](p *T, v T) {
	var none T
	if *p == none {
		*p = v
	}
}
