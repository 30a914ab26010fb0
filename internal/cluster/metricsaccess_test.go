package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestMetricsNeedARight: a local user or a pod on the host network reads
// nothing without a token; an account with the right does.
func TestMetricsNeedARight(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if review.Spec.Token != "made-up" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
				User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		n := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && n != nil && n.Path == "/metrics" && n.Verb == "get"
		return true, review, nil
	})
	h := guardMetrics(func() kubernetes.Interface { return client }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	for header, want := range map[string]int{"": 401, "Basic abc": 401, "Bearer made-up": 401, "Bearer nobody": 403,
		"Bearer prometheus": 200} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: got %d %s, want %d", header, w.Code, w.Body, want)
		}
	}
}
