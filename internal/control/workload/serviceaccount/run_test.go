package serviceaccount

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestMissing: each live namespace gets its account, and no other.
func TestMissing(t *testing.T) {
	now := metav1.Now()
	live := &v1.Namespace{Status: v1.NamespaceStatus{Phase: v1.NamespaceActive}}
	for name, c := range map[string]struct {
		ns     *v1.Namespace
		exists bool
		want   bool
	}{
		"no account yet":          {live, false, true},
		"it has one":              {live, true, false},
		"no phase yet":            {&v1.Namespace{}, false, true},
		"it is being deleted":     {&v1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, false, false},
		"its phase is the ending": {&v1.Namespace{Status: v1.NamespaceStatus{Phase: v1.NamespaceTerminating}}, false, false},
	} {
		if got := missing(c.ns, c.exists); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestNeedsNoRetry: what ends the work on a namespace, and what is tried again.
func TestNeedsNoRetry(t *testing.T) {
	accounts := schema.GroupResource{Resource: "serviceaccounts"}
	ending := apierrors.NewForbidden(accounts, name, errors.New("being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1.NamespaceTerminatingCause}}
	for text, c := range map[string]struct {
		err  error
		want bool
	}{
		"it exists":               {apierrors.NewAlreadyExists(accounts, name), true},
		"the namespace is gone":   {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), true},
		"the namespace is ending": {ending, true},
		"no right":                {apierrors.NewForbidden(accounts, name, errors.New("no")), false},
		"no answer":               {apierrors.NewServerTimeout(accounts, "create", 1), false},
	} {
		if got := needsNoRetry(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", text, got, c.want)
		}
	}
}
