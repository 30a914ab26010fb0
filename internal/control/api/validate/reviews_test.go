package validate_test

import (
	"testing"

	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

func TestRequests(t *testing.T) {
	asked := &authorization.ResourceAttributes{Namespace: "ns", Verb: "get", Resource: "pods"}
	for _, c := range []struct {
		name string
		errs field.ErrorList
		want []string
	}{
		{"may I", validate.SelfSubjectAccessReview(&authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{
			ResourceAttributes: asked}}), nil},
		{"may I what", validate.SelfSubjectAccessReview(&authorization.SelfSubjectAccessReview{}),
			[]string{"spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be " +
				"specified"}},
		{"stored question", validate.SelfSubjectAccessReview(
			&authorization.SelfSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"},
				Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}),
			[]string{"metadata: Invalid value: must be empty"}},
		{"may nobody", validate.SubjectAccessReview(&authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
			ResourceAttributes: asked}}),
			[]string{"spec.user: Invalid value: \"\": at least one of user or group must be specified"}},
		{"elsewhere", validate.LocalSubjectAccessReview(
			&authorization.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "other"},
				Spec: authorization.SubjectAccessReviewSpec{User: "u", ResourceAttributes: asked}}),
			[]string{"spec.resourceAttributes.namespace: Invalid value: \"ns\": must match metadata.namespace"}},
	} {
		t.Run(c.name, func(t *testing.T) { compare(t, c.errs, c.want) })
	}
}
