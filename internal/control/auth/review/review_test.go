package review

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// rules is an authorizer that keeps the request it was asked about.
type rules struct {
	decision authorizer.Decision
	reason   string
	err      error
	asked    []authorizer.Attributes
}

func (r *rules) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	r.asked = append(r.asked, a)
	return r.decision, r.reason, r.err
}

// ask posts a review as a user in a namespace.
func ask(t *testing.T, storage rest.Storage, who user.Info, namespace string, review runtime.Object) (runtime.Object, error) {
	t.Helper()
	ctx := genericapirequest.WithNamespace(t.Context(), namespace)
	if who != nil {
		ctx = genericapirequest.WithUser(ctx, who)
	}
	return storage.(rest.Creater).Create(ctx, review, nil, &metav1.CreateOptions{})
}

func getPods(namespace string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Version: "v1", Resource: "pods", Subresource: "log",
		Name: "web"}
}

// The three answers of an authorizer stay apart: allowed, denied, and no opinion
// with the error that explains it.
func TestAccessReviewTellsTheDecision(t *testing.T) {
	for _, c := range []struct {
		rules rules
		want  authorizationv1.SubjectAccessReviewStatus
	}{
		{rules{decision: authorizer.DecisionAllow, reason: "RBAC: allowed"},
			authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "RBAC: allowed"}},
		{rules{decision: authorizer.DecisionDeny, reason: "no"}, authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "no"}},
		{rules{decision: authorizer.DecisionNoOpinion, err: errors.New("role not found")},
			authorizationv1.SubjectAccessReviewStatus{EvaluationError: "role not found"}},
	} {
		spec := authorizationv1.SubjectAccessReviewSpec{User: "eve", UID: "7", Groups: []string{"dev"}, ResourceAttributes: getPods("shop"),
			Extra: map[string]authorizationv1.ExtraValue{"scope": {"a", "b"}}}
		out, err := ask(t, NewSubjectAccessReview(&c.rules), nil, "", &authorizationv1.SubjectAccessReview{Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		if got := out.(*authorizationv1.SubjectAccessReview).Status; got != c.want {
			t.Errorf("status %+v, want %+v", got, c.want)
		}
		a := c.rules.asked[0]
		who := a.GetUser()
		if who.GetName() != "eve" || who.GetUID() != "7" || !reflect.DeepEqual(who.GetGroups(), []string{"dev"}) ||
			!reflect.DeepEqual(who.GetExtra(), map[string][]string{"scope": {"a", "b"}}) {
			t.Errorf("asked about %+v", who)
		}
		if !a.IsResourceRequest() || a.GetVerb() != "get" || a.GetNamespace() != "shop" || a.GetResource() != "pods" ||
			a.GetSubresource() != "log" || a.GetName() != "web" || a.GetAPIVersion() != "v1" {
			t.Errorf("asked about %+v", a)
		}
	}
}

// A path is asked about as a path.
func TestAccessReviewOfAPath(t *testing.T) {
	r := &rules{decision: authorizer.DecisionAllow}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}}}
	if _, err := ask(t, NewSelfSubjectAccessReview(r), &user.DefaultInfo{Name: "ann"}, "", review); err != nil {
		t.Fatal(err)
	}
	if a := r.asked[0]; a.IsResourceRequest() || a.GetPath() != "/metrics" || a.GetUser().GetName() != "ann" {
		t.Errorf("asked about %+v, want the path, for the user of the request", a)
	}
}

// A review that is refused never reaches the authorizer.
func TestAccessReviewsThatAreRefused(t *testing.T) {
	path := &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"}
	pods := getPods("shop")
	raw := getPods("shop")
	raw.FieldSelector = &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=a",
		Requirements: []metav1.FieldSelectorRequirement{{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{"a"}}}}
	empty := getPods("shop")
	empty.LabelSelector = &authorizationv1.LabelSelectorAttributes{}
	subject := func(user string, r *authorizationv1.ResourceAttributes, p *authorizationv1.NonResourceAttributes) runtime.Object {
		return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: r,
			NonResourceAttributes: p}}
	}
	local := func(r *authorizationv1.ResourceAttributes, p *authorizationv1.NonResourceAttributes) runtime.Object {
		return &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: r,
				NonResourceAttributes: p}}
	}
	for name, c := range map[string]struct {
		kind   func(authorizer.UnconditionalAuthorizer) rest.Storage
		review runtime.Object
		want   string
	}{
		"nobody":              {NewSubjectAccessReview, subject("", pods, nil), "at least one of user or group"},
		"resource and path":   {NewSubjectAccessReview, subject("u", pods, path), "cannot be specified in combination"},
		"neither":             {NewSubjectAccessReview, subject("u", nil, nil), "exactly one of"},
		"selector twice":      {NewSubjectAccessReview, subject("u", raw, nil), "may not specified at the same time"},
		"empty selector":      {NewSubjectAccessReview, subject("u", empty, nil), "requirements or rawSelector is required"},
		"path in a namespace": {NewLocalSubjectAccessReview, local(nil, path), "disallowed on this kind of request"},
		"another namespace":   {NewLocalSubjectAccessReview, local(getPods("other"), nil), "must match metadata.namespace"},
		"self without a user": {NewSelfSubjectAccessReview,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: pods}},
			"no user present"},
		"another kind of body": {NewSelfSubjectAccessReview, subject("u", pods, nil), "body is a *v1.SubjectAccessReview"},
	} {
		r := &rules{decision: authorizer.DecisionAllow}
		_, err := ask(t, c.kind(r), nil, "shop", c.review)
		if err == nil || !strings.Contains(err.Error(), c.want) || !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v, want a refusal that says %q", name, err, c.want)
		}
		if len(r.asked) > 0 {
			t.Errorf("%s: the authorizer was asked", name)
		}
	}
	r := &rules{decision: authorizer.DecisionAllow}
	out, err := ask(t, NewLocalSubjectAccessReview(r), nil, "shop", local(pods, nil))
	if err != nil || !out.(*authorizationv1.LocalSubjectAccessReview).Status.Allowed {
		t.Errorf("a review of its own namespace: %v, %+v", err, out)
	}
}

// Selectors narrow the request that the authorizer sees. A requirement that it
// cannot understand is left out, which makes the request wider: never narrower.
func TestSelectorsReachTheAuthorizer(t *testing.T) {
	in := func(key string, values ...string) metav1.FieldSelectorRequirement {
		return metav1.FieldSelectorRequirement{Key: key, Operator: metav1.FieldSelectorOpIn, Values: values}
	}
	for _, c := range []struct {
		name   string
		fields *authorizationv1.FieldSelectorAttributes
		labels *authorizationv1.LabelSelectorAttributes
		want   string
		failed bool
	}{
		{"none", nil, nil, "", false},
		{"raw", &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=a,status.phase!=Failed"},
			&authorizationv1.LabelSelectorAttributes{RawSelector: "app in (web),!old"},
			"spec.nodeName = a,status.phase != Failed;app in (web) !old", false},
		{"requirements", &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{in("spec.nodeName",
			"a")}},
			&authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{{Key: "app",
				Operator: metav1.LabelSelectorOpExists}}},
			"spec.nodeName = a;app", false},
		{"one of two cannot be used", &authorizationv1.FieldSelectorAttributes{
			Requirements: []metav1.FieldSelectorRequirement{in("spec.nodeName", "a", "b"), in("metadata.name", "x")}}, nil,
			"metadata.name = x;",
			false},
		{"none can be used", &authorizationv1.FieldSelectorAttributes{
			Requirements: []metav1.FieldSelectorRequirement{{Key: "x", Operator: metav1.FieldSelectorOpExists}}}, nil, "", true},
		{"unreadable", &authorizationv1.FieldSelectorAttributes{RawSelector: "=="},
			&authorizationv1.LabelSelectorAttributes{RawSelector: "a in"}, "", true},
	} {
		r := &rules{decision: authorizer.DecisionNoOpinion}
		attributes := getPods("shop")
		attributes.FieldSelector, attributes.LabelSelector = c.fields, c.labels
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: attributes}}
		if _, err := ask(t, NewSelfSubjectAccessReview(r), &user.DefaultInfo{Name: "u"}, "", review); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		fields, ferr := r.asked[0].GetFieldSelector()
		labels, lerr := r.asked[0].GetLabelSelector()
		var words []string
		for _, f := range fields {
			words = append(words, f.Field+" "+strings.ReplaceAll(string(f.Operator), "==", "=")+" "+f.Value)
		}
		got := strings.Join(words, ",")
		words = nil
		for _, l := range labels {
			words = append(words, l.String())
		}
		if got += ";" + strings.Join(words, " "); strings.Trim(got, ";") != strings.Trim(c.want, ";") {
			t.Errorf("%s: the authorizer sees %q, want %q", c.name, got, c.want)
		}
		if failed := ferr != nil || lerr != nil; failed != c.failed {
			t.Errorf("%s: errors %v, %v; want one: %v", c.name, ferr, lerr, c.failed)
		}
	}
}

// Admission may refuse a review, and sees a copy of it.
func TestAdmissionSeesTheReviewFirst(t *testing.T) {
	r := &rules{decision: authorizer.DecisionAllow}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: getPods(
		"shop")}}
	refuse := func(_ context.Context, obj runtime.Object) error {
		obj.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes.Verb = "changed"
		return errors.New("not now")
	}
	ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "u"})
	_, err := NewSelfSubjectAccessReview(r).(rest.Creater).Create(ctx, review, refuse, &metav1.CreateOptions{})
	if err == nil || len(r.asked) > 0 || review.Spec.ResourceAttributes.Verb != "get" {
		t.Errorf("refused by admission: %v, asked %d times, verb %q", err, len(r.asked), review.Spec.ResourceAttributes.Verb)
	}
}

// resolver answers with fixed rules.
type resolver struct{ err error }

func (r resolver) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool,
	error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"}, APIGroups: []string{""},
			Resources:     []string{"pods"},
			ResourceNames: []string{"web"}}},
		[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"get"},
			NonResourceURLs: []string{"/healthz"}}}, r.err != nil, r.err
}

func TestRulesReview(t *testing.T) {
	ann := &user.DefaultInfo{Name: "ann"}
	review := func(namespace string) *authorizationv1.SelfSubjectRulesReview {
		return &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	}
	for _, err := range []error{nil, errors.New("role missing")} {
		out, failed := ask(t, NewSelfSubjectRulesReview(resolver{err}), ann, "", review("shop"))
		if failed != nil {
			t.Fatal(failed)
		}
		want := authorizationv1.SubjectRulesReviewStatus{
			ResourceRules: []authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"},
				ResourceNames: []string{"web"}}},
			NonResourceRules: []authorizationv1.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}}},
			Incomplete:       err != nil,
		}
		if err != nil {
			want.EvaluationError = err.Error()
		}
		if got := out.(*authorizationv1.SelfSubjectRulesReview).Status; !reflect.DeepEqual(got, want) {
			t.Errorf("status %+v, want %+v", got, want)
		}
	}
	if _, err := ask(t, NewSelfSubjectRulesReview(resolver{}), ann, "", review("")); !apierrors.IsBadRequest(err) {
		t.Errorf("without a namespace: %v", err)
	}
	if _, err := ask(t, NewSelfSubjectRulesReview(resolver{}), nil, "", review("shop")); !apierrors.IsBadRequest(err) {
		t.Errorf("without a user: %v", err)
	}
}

// tokens knows one token and answers for the audiences it was asked for.
type tokens struct{ audiences authenticator.Audiences }

func (k *tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	k.audiences, _ = authenticator.AudiencesFrom(ctx)
	if token == "nobody's" {
		return nil, false, nil
	}
	if token != "good" {
		return nil, false, errors.New("unknown token")
	}
	return &authenticator.Response{Audiences: k.audiences, User: &user.DefaultInfo{Name: "ann", UID: "1", Groups: []string{"g"},
		Extra: map[string][]string{"pod": {"web"}}}}, true, nil
}

func TestTokenReview(t *testing.T) {
	k := &tokens{}
	review := func(token string, audiences ...string) (*authenticationv1.TokenReview, error) {
		out, err := ask(t, NewTokenReview(k, []string{"api"}), nil, "",
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}})
		if err != nil {
			return nil, err
		}
		return out.(*authenticationv1.TokenReview), nil
	}
	good, err := review("good")
	if err != nil {
		t.Fatal(err)
	}
	want := authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"api"},
		User: authenticationv1.UserInfo{Username: "ann", UID: "1",
			Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"web"}}}}
	if !reflect.DeepEqual(good.Status, want) {
		t.Errorf("status %+v, want %+v", good.Status, want)
	}
	if vault, err := review("good", "vault"); err != nil || !reflect.DeepEqual(vault.Status.Audiences, []string{"vault"}) {
		t.Errorf("the review's own audience: %v, %+v", err, vault)
	}
	bad, err := review("bad")
	if err != nil || bad.Status.Authenticated || bad.Status.Error != "unknown token" || bad.Status.User.Username != "" {
		t.Errorf("an unknown token: %v, %+v", err, bad)
	}
	if none, err := review("nobody's"); err != nil || none.Status.Authenticated || none.Status.Error != "invalid bearer token" {
		t.Errorf("a token that nobody knows: %v, %+v", err, none)
	}
	if _, err := review(""); !apierrors.IsBadRequest(err) {
		t.Errorf("no token: %v", err)
	}
}

// A SelfSubjectReview keeps nothing of what the client sent.
func TestSelfSubjectReview(t *testing.T) {
	in := &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}},
		Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "root"}}}
	out, err := ask(t, NewSelfSubjectReview(), &user.DefaultInfo{Name: "ann"}, "", in)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.(*authenticationv1.SelfSubjectReview); got.Status.UserInfo.Username != "ann" || got.Name != "" || got.Labels != nil {
		t.Errorf("got %+v", got)
	}
	if _, err := ask(t, NewSelfSubjectReview(), nil, "", in); !apierrors.IsBadRequest(err) {
		t.Errorf("without a user: %v", err)
	}
}
