package kube

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestGone(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	invalid := func(path string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", path), "x",
			"field is immutable")})
	}
	for _, c := range []struct {
		err            error
		replaced, gone bool
	}{
		{nil, false, false},
		{errors.New("no route"), false, false},
		{apierrors.NewNotFound(pods, "p"), false, true},
		{apierrors.NewConflict(pods, "p", errors.New("Precondition failed: UID in precondition: a, UID in object meta: b")), true, true},
		{invalid("uid"), true, true},
		{fmt.Errorf("patching: %w", invalid("uid")), true, true},
		{invalid("labels"), false, false},
		{apierrors.NewForbidden(pods, "p", errors.New("no")), false, false},
	} {
		if Replaced(c.err) != c.replaced || Gone(c.err) != c.gone {
			t.Errorf("%v: replaced %v, gone %v", c.err, Replaced(c.err), Gone(c.err))
		}
	}
}
