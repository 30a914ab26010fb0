package kube

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Replaced tells whether a write was refused because its body names the UID of
// an object that has gone and whose name another one has by now. An API server
// says so in three ways: 422 with metadata.uid as an immutable field to a PATCH,
// 409 with a failed precondition to a PUT or DELETE, and 409 with a UID mismatch
// where nothing has the name. A 409 for another reason (the resourceVersion is
// not the newest, say) is none of these for a body that names no version; for
// others ask only whether the answer is a conflict.
func Replaced(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// Gone tells whether the very object that a write was meant for is no more:
// nothing has its name, or another one has.
func Gone(err error) bool { return apierrors.IsNotFound(err) || Replaced(err) }

// IgnoreNotFound is err, but nil if the object is not there: what was to be
// done to it needs doing no more.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
