package validate

import (
	"testing"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestRequests(t *testing.T) {
	short, fine := int64(60), int64(3600)
	asked := &authorization.ResourceAttributes{Namespace: "ns", Verb: "get", Resource: "pods"}
	for _, c := range []struct {
		name string
		obj  runtime.Object
		want []string
	}{
		{"token", &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &fine}}, nil},
		{"short token", &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &short}},
			[]string{"spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes"}},
		{"no token", &authentication.TokenReview{}, []string{"spec.token: Required value"}},
		{"who am I", &authentication.SelfSubjectReview{}, nil},
		{"may I", &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}, nil},
		{"may I what", &authorization.SelfSubjectAccessReview{},
			[]string{"spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"}},
		{"stored question", &authorization.SelfSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}},
			[]string{"metadata: Invalid value: must be empty"}},
		{"may nobody", &authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{ResourceAttributes: asked}},
			[]string{"spec.user: Invalid value: \"\": at least one of user or group must be specified"}},
		{"elsewhere", &authorization.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}, Spec: authorization.SubjectAccessReviewSpec{User: "u", ResourceAttributes: asked}},
			[]string{"spec.resourceAttributes.namespace: Invalid value: \"ns\": must match metadata.namespace"}},
		{"rules where", &authorization.SelfSubjectRulesReview{}, []string{"spec.namespace: Required value"}},
		{"binding", &v1.Binding{Target: v1.ObjectReference{Name: "n"}}, nil},
		{"timeless event", &events.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns"}}, []string{"eventTime: Required value"}},
	} {
		t.Run(c.name, func(t *testing.T) { compare(t, Create(c.obj), c.want) })
	}
}
