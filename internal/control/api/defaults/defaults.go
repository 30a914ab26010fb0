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
