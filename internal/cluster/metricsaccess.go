package cluster

import (
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// guardMetrics lets in who has a token and may get /metrics, as the API server
// judges it for its own. Loopback is no proof of anything: every local user
// and every pod on the host network is there. client is asked per request.
func guardMetrics(client func() kubernetes.Interface, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "metrics need a token: Authorization: Bearer $(berth kubectl create token ACCOUNT), of an account that may get "+
				"/metrics", http.StatusUnauthorized)
			return
		}
		review, err := client().AuthenticationV1().TokenReviews().Create(r.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			http.Error(w, "asking the API server who calls: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if !review.Status.Authenticated {
			http.Error(w, "the API server does not know this token", http.StatusUnauthorized)
			return
		}
		user := review.Status.User
		extra := map[string]authorizationv1.ExtraValue{}
		for key, values := range user.Extra {
			extra[key] = authorizationv1.ExtraValue(values)
		}
		access, err := client().AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}},
		}, metav1.CreateOptions{})
		if err != nil {
			http.Error(w, "asking the API server what the caller may: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if !access.Status.Allowed {
			http.Error(w, "user "+user.Username+
				" may not get /metrics: bind it to a ClusterRole with nonResourceURLs [/metrics], verbs [get]", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
