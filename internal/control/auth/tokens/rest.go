package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
)

const (
	minExpirySeconds     = 10 * 60
	maxExpirySeconds     = 1 << 32
	defaultExpirySeconds = 60 * 60
	// projectedExpirySeconds marks the token volume that ServiceAccount
	// admission adds. Such tokens stay valid for extendedExpiry for clients
	// that read the file once; warnafter tells them apart.
	projectedExpirySeconds = 60*60 + 7
	extendedExpiry         = 365 * 24 * time.Hour
)

var requestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// RESTConfig is what the serviceaccounts/token resource needs.
type RESTConfig struct {
	Generator *Generator
	Objects   objects
	// Audiences given to a token that asks for none.
	Audiences []string
	// MaxExpiry clips what clients ask for; 0 means no limit.
	MaxExpiry time.Duration
	// Now defaults to time.Now.
	Now func() time.Time
}

// REST is the storage behind serviceaccounts/token.
type REST struct{ RESTConfig }

// NewREST returns the storage for serviceaccounts/token.
func NewREST(cfg RESTConfig) *REST {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &REST{cfg}
}

func (r *REST) New() runtime.Object     { return &authenticationv1.TokenRequest{} }
func (r *REST) Destroy()                {}
func (r *REST) NamespaceScoped() bool   { return true }
func (r *REST) GetSingularName() string { return "serviceaccount" }

// GroupVersionKind tells discovery the kind, which is foreign to core/v1.
func (r *REST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return requestKind }

// Create issues a token for the named service account and returns the request
// with its status filled in.
func (r *REST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("creating a service account token: body is a %T, it must be a TokenRequest", obj))
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	account, err := r.Objects.ServiceAccount(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	if err := r.complete(req, account); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, req.DeepCopy()); err != nil {
			return nil, err
		}
	}
	binding, err := r.bind(ctx, account, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	terms, shown := r.terms(ctx, req, binding)
	if len(options.DryRun) > 0 {
		req.Status = authenticationv1.TokenRequestStatus{ExpirationTimestamp: shown}
		return req, nil
	}
	token, id, err := r.Generator.Generate(binding, terms)
	if err != nil {
		return nil, err
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+id)
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: shown}
	return req, nil
}

// complete fills in what the client left out and refuses what it got wrong.
func (r *REST) complete(req *authenticationv1.TokenRequest, account *corev1.ServiceAccount) error {
	if req.Name == "" {
		req.Name = account.Name
	}
	if req.Namespace == "" {
		req.Namespace = account.Namespace
	}
	if req.Name != account.Name || req.Namespace != account.Namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("the request is for service account %s/%s, its metadata names %s/%s",
			account.Namespace, account.Name, req.Namespace, req.Name))
	}
	if req.CreationTimestamp.IsZero() {
		req.CreationTimestamp = metav1.NewTime(r.Now())
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(r.Audiences)
	}
	if req.Spec.ExpirationSeconds == nil {
		req.Spec.ExpirationSeconds = new(int64)
		*req.Spec.ExpirationSeconds = defaultExpirySeconds
	}
	if errs := validateRequest(&req.Spec); len(errs) > 0 {
		return apierrors.NewInvalid(requestKind.GroupKind(), req.Name, errs)
	}
	return nil
}

func validateRequest(spec *authenticationv1.TokenRequestSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	switch seconds := *spec.ExpirationSeconds; {
	case seconds < minExpirySeconds:
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	case seconds > maxExpirySeconds:
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if bound := spec.BoundObjectRef; bound != nil && bound.Name == "" {
		errs = append(errs, field.Required(path.Child("boundObjectRef", "name"), "the object to bind to needs a name"))
	}
	return errs
}

// bind looks up the object the token is to live and die with.
func (r *REST) bind(ctx context.Context, account *corev1.ServiceAccount, to *authenticationv1.BoundObjectReference) (Binding, error) {
	binding := Binding{ServiceAccount: account}
	if to == nil {
		return binding, nil
	}
	var resource string
	var found object
	var err error
	switch (schema.GroupVersionKind{Version: to.APIVersion, Kind: to.Kind}) {
	case schema.GroupVersionKind{Version: "v1", Kind: "Pod"}:
		resource = "pods"
		if binding.Pod, err = r.Objects.Pod(ctx, account.Namespace, to.Name, to.UID); err != nil {
			return Binding{}, err
		}
		if account.Name != binding.Pod.Spec.ServiceAccountName {
			return Binding{}, apierrors.NewBadRequest(fmt.Sprintf(
				"cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", account.Name))
		}
		if binding.Node, err = r.nodeOf(ctx, binding.Pod); err != nil {
			return Binding{}, err
		}
		found = binding.Pod
	case schema.GroupVersionKind{Version: "v1", Kind: "Node"}:
		resource = "nodes"
		if binding.Node, err = r.Objects.Node(ctx, to.Name, to.UID); err != nil {
			return Binding{}, err
		}
		found = binding.Node
	case schema.GroupVersionKind{Version: "v1", Kind: "Secret"}:
		resource = "secrets"
		if binding.Secret, err = r.Objects.Secret(ctx, account.Namespace, to.Name, to.UID); err != nil {
			return Binding{}, err
		}
		found = binding.Secret
	default:
		return Binding{}, apierrors.NewBadRequest(fmt.Sprintf(
			"cannot bind token to object of type %s %s: allowed are v1 Pod, Node and Secret", to.APIVersion, to.Kind))
	}
	return binding, sameIncarnation(resource, to, found.GetUID())
}

// nodeOf finds the pod's node, nil when it runs nowhere or its node is gone.
func (r *REST) nodeOf(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := r.Objects.Node(ctx, pod.Spec.NodeName, "")
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return node, err
}

func sameIncarnation(resource string, to *authenticationv1.BoundObjectReference, uid types.UID) error {
	if to.UID == "" || to.UID == uid {
		return nil
	}
	return apierrors.NewConflict(schema.GroupResource{Resource: resource}, to.Name, fmt.Errorf(
		"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then "+
			"recreated", to.UID))
}

// terms works out the token's times and the expiry to show for it.
func (r *REST) terms(ctx context.Context, req *authenticationv1.TokenRequest, binding Binding) (Terms, metav1.Time) {
	now := r.Now()
	life := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	if r.MaxExpiry > 0 && life > r.MaxExpiry {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds",
			*req.Spec.ExpirationSeconds, int64(r.MaxExpiry.Seconds())))
		life = r.MaxExpiry
		*req.Spec.ExpirationSeconds = int64(life.Seconds())
	}
	terms := Terms{Audiences: req.Spec.Audiences, IssuedAt: now, Expires: now.Add(life)}
	shown := metav1.NewTime(terms.Expires)
	if binding.Pod != nil && *req.Spec.ExpirationSeconds == projectedExpirySeconds && r.forThisServer(req.Spec.Audiences) {
		terms.WarnAfter, terms.Expires = terms.Expires, now.Add(extendedExpiry)
	}
	return terms, shown
}

func (r *REST) forThisServer(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(r.Audiences, a) {
			return false
		}
	}
	return true
}
