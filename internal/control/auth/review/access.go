// Package review serves the review resources: may this user do this, who is
// this token, who am I, what may I do.
package review

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

// create is a storage that can only create: a review is answered, not kept.
type create[T runtime.Object] struct {
	singular   string
	namespaced bool
	empty      func() T
	answer     func(ctx context.Context, review T) (runtime.Object, error)
}

func (c *create[T]) New() runtime.Object     { return c.empty() }
func (c *create[T]) Destroy()                {}
func (c *create[T]) NamespaceScoped() bool   { return c.namespaced }
func (c *create[T]) GetSingularName() string { return c.singular }

// Create answers the review. Admission sees it first, and a dry run gets the
// same answer: a review changes nothing.
func (c *create[T]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(T)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("creating a %s: body is a %T", c.singular, obj))
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return c.answer(ctx, review)
}

// NewSubjectAccessReview serves subjectaccessreviews.
func NewSubjectAccessReview(a authorizer.UnconditionalAuthorizer) rest.Storage {
	return &create[*authorizationv1.SubjectAccessReview]{
		singular: "subjectaccessreview",
		empty:    func() *authorizationv1.SubjectAccessReview { return &authorizationv1.SubjectAccessReview{} },
		answer: func(ctx context.Context, r *authorizationv1.SubjectAccessReview) (runtime.Object, error) {
			if errs := validate.SubjectAccessReview(r); len(errs) > 0 {
				return nil, apierrors.NewInvalid(kind("SubjectAccessReview"), "", errs)
			}
			r.Status = decide(ctx, a, subjectOf(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		},
	}
}

// NewLocalSubjectAccessReview serves localsubjectaccessreviews.
func NewLocalSubjectAccessReview(a authorizer.UnconditionalAuthorizer) rest.Storage {
	return &create[*authorizationv1.LocalSubjectAccessReview]{
		singular: "localsubjectaccessreview", namespaced: true,
		empty: func() *authorizationv1.LocalSubjectAccessReview { return &authorizationv1.LocalSubjectAccessReview{} },
		answer: func(ctx context.Context, r *authorizationv1.LocalSubjectAccessReview) (runtime.Object, error) {
			if errs := validate.LocalSubjectAccessReview(r); len(errs) > 0 {
				return nil, apierrors.NewInvalid(kind("LocalSubjectAccessReview"), "", errs)
			}
			if namespace := genericapirequest.NamespaceValue(ctx); namespace != r.Spec.ResourceAttributes.Namespace {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", namespace))
			}
			r.Status = decide(ctx, a, subjectOf(&r.Spec), r.Spec.ResourceAttributes, nil)
			return r, nil
		},
	}
}

// NewSelfSubjectAccessReview serves selfsubjectaccessreviews.
func NewSelfSubjectAccessReview(a authorizer.UnconditionalAuthorizer) rest.Storage {
	return &create[*authorizationv1.SelfSubjectAccessReview]{
		singular: "selfsubjectaccessreview",
		empty:    func() *authorizationv1.SelfSubjectAccessReview { return &authorizationv1.SelfSubjectAccessReview{} },
		answer: func(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
			if errs := validate.SelfSubjectAccessReview(r); len(errs) > 0 {
				return nil, apierrors.NewInvalid(kind("SelfSubjectAccessReview"), "", errs)
			}
			who, known := genericapirequest.UserFrom(ctx)
			if !known {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			r.Status = decide(ctx, a, who, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			return r, nil
		},
	}
}

// NewSelfSubjectRulesReview serves selfsubjectrulesreviews.
func NewSelfSubjectRulesReview(resolver authorizer.RuleResolver) rest.Storage {
	return &create[*authorizationv1.SelfSubjectRulesReview]{
		singular: "selfsubjectrulesreview",
		empty:    func() *authorizationv1.SelfSubjectRulesReview { return &authorizationv1.SelfSubjectRulesReview{} },
		answer: func(ctx context.Context, r *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
			who, known := genericapirequest.UserFrom(ctx)
			if !known {
				return nil, apierrors.NewBadRequest("no user present on request")
			}
			if r.Spec.Namespace == "" {
				return nil, apierrors.NewBadRequest("no namespace on request")
			}
			resources, paths, incomplete, err := resolver.RulesFor(ctx, who, r.Spec.Namespace)
			r.Status = authorizationv1.SubjectRulesReviewStatus{
				ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
				Incomplete: incomplete,
			}
			for _, rule := range resources {
				r.Status.ResourceRules = append(r.Status.ResourceRules, authorizationv1.ResourceRule{
					Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(),
					ResourceNames: rule.GetResourceNames(),
				})
			}
			for _, rule := range paths {
				r.Status.NonResourceRules = append(r.Status.NonResourceRules, authorizationv1.NonResourceRule{
					Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
				})
			}
			if err != nil {
				r.Status.EvaluationError = err.Error()
			}
			return r, nil
		},
	}
}

func kind(name string) schema.GroupKind {
	return schema.GroupKind{Group: authorizationv1.GroupName, Kind: name}
}

func subjectOf(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	who := &user.DefaultInfo{Name: spec.User, Groups: spec.Groups, UID: spec.UID}
	if len(spec.Extra) > 0 {
		who.Extra = make(map[string][]string, len(spec.Extra))
		for k, v := range spec.Extra {
			who.Extra[k] = v
		}
	}
	return who
}

func decide(ctx context.Context, a authorizer.UnconditionalAuthorizer, who user.Info, resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	attributes := authorizer.AttributesRecord{User: who}
	if resource != nil {
		attributes.ResourceRequest = true
		attributes.Verb, attributes.Namespace = resource.Verb, resource.Namespace
		attributes.APIGroup, attributes.APIVersion = resource.Group, resource.Version
		attributes.Resource, attributes.Subresource, attributes.Name = resource.Resource, resource.Subresource, resource.Name
		attributes.FieldSelectorRequirements, attributes.FieldSelectorParsingErr = fieldRequirements(resource.FieldSelector)
		attributes.LabelSelectorRequirements, attributes.LabelSelectorParsingErr = labelRequirements(resource.LabelSelector)
	} else {
		attributes.Verb, attributes.Path = path.Verb, path.Path
	}
	decision, reason, err := a.Authorize(ctx, attributes)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny, Reason: reason,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}
