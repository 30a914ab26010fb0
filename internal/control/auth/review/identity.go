package review

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NewTokenReview serves tokenreviews. Audiences are those a token is checked
// for when the review names none.
func NewTokenReview(tokens authenticator.Token, audiences []string) rest.Storage {
	return &create[*authenticationv1.TokenReview]{
		singular: "tokenreview",
		empty:    func() *authenticationv1.TokenReview { return &authenticationv1.TokenReview{} },
		answer: func(ctx context.Context, r *authenticationv1.TokenReview) (runtime.Object, error) {
			if r.Spec.Token == "" {
				return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
			}
			wanted := r.Spec.Audiences
			if len(wanted) == 0 {
				wanted = audiences
			}
			who, authenticated, err := tokens.AuthenticateToken(authenticator.WithAudiences(ctx, wanted), r.Spec.Token)
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: authenticated}
			switch {
			case err != nil:
				r.Status.Error = err.Error()
			case !authenticated:
				r.Status.Error = "invalid bearer token"
			}
			if authenticated && who != nil && who.User != nil {
				r.Status.User = userInfo(who.User)
				r.Status.Audiences = who.Audiences
			}
			return r, nil
		},
	}
}

// NewSelfSubjectReview serves selfsubjectreviews.
func NewSelfSubjectReview() rest.Storage {
	return &create[*authenticationv1.SelfSubjectReview]{
		singular: "selfsubjectreview",
		empty:    func() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} },
		answer: func(ctx context.Context, r *authenticationv1.SelfSubjectReview) (runtime.Object, error) {
			who, known := genericapirequest.UserFrom(ctx)
			if !known {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			r.ObjectMeta = metav1.ObjectMeta{CreationTimestamp: r.CreationTimestamp}
			r.Status = authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(who)}
			return r, nil
		},
	}
}

func userInfo(who user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups()}
	if extra := who.GetExtra(); len(extra) > 0 {
		out.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			out.Extra[k] = v
		}
	}
	return out
}
