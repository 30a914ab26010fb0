// Package certificates serves CertificateSigningRequests: who asked is recorded
// by the server, approving and signing are separate endpoints, and neither can
// do the other's part.
package certificates

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	certificateskinds "github.com/berth-dev/berth/internal/control/api/kinds/certificates"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
	"github.com/berth-dev/berth/internal/kube"
)

// Deps are the collaborators of the certificate request storage.
type Deps struct {
	Scheme *runtime.Scheme
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

type (
	request   = certificatesv1.CertificateSigningRequest
	condition = certificatesv1.CertificateSigningRequestCondition
)

// NewStorage builds the endpoints of certificatesigningrequests.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	kind := certificateskinds.CertificateSigningRequest
	kind.PrepareForCreate = func(ctx context.Context, csr *request) {
		if who, ok := genericapirequest.UserFrom(ctx); ok {
			setRequester(&csr.Spec, who)
		}
		recordSource(ctx, &csr.Spec)
	}
	// Nothing of a request changes after it was made but its metadata:
	// approvers have read it.
	kind.PrepareForUpdate = func(_ context.Context, csr, old *request) { csr.Spec = old.Spec }
	kind.PrepareForStatusUpdate = func(_ context.Context, csr, old *request) {
		csr.Status.Conditions = keepTypes(csr.Status.Conditions, old.Status.Conditions, certificatesv1.CertificateApproved,
			certificatesv1.CertificateDenied)
		stamp(csr.Status.Conditions, old.Status.Conditions, metav1.NewTime(deps.Now()))
	}
	store, err := kind.NewStore(deps.Scheme, opts)
	if err != nil {
		return nil, err
	}
	approval := kind.NewSubresource(store, registry.Endpoint[*request]{
		PrepareForUpdate: func(_ context.Context, csr, old *request) {
			csr.Spec = old.Spec
			csr.Status.Certificate = old.Status.Certificate
			csr.Status.Conditions = keepTypes(csr.Status.Conditions, old.Status.Conditions, certificatesv1.CertificateFailed)
			stamp(csr.Status.Conditions, old.Status.Conditions, metav1.NewTime(deps.Now()))
		},
		ValidateUpdate: validate.CSRApproval,
		ResetFields:    [][]string{{"spec"}, {"status", "certificate"}},
	})
	return map[string]rest.Storage{
		"certificatesigningrequests":          store,
		"certificatesigningrequests/status":   kind.NewStatus(store),
		"certificatesigningrequests/approval": approval,
	}, nil
}

// recordSource writes where the request came from, for approvers: it is the one
// thing about its address that a node does not say itself.
func recordSource(ctx context.Context, spec *certificatesv1.CertificateSigningRequestSpec) {
	delete(spec.Extra, kube.SourceKey)
	source, ok := ctx.Value(sourceKey{}).(string)
	if !ok {
		return
	}
	if spec.Extra == nil {
		spec.Extra = map[string]certificatesv1.ExtraValue{}
	}
	spec.Extra[kube.SourceKey] = certificatesv1.ExtraValue{source}
}

type sourceKey struct{}

// WithSource lets NewStorage know which address a request came from: that of
// the connection, never what a header says.
func WithSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/certificatesigningrequests") {
			if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
				r = r.WithContext(context.WithValue(r.Context(), sourceKey{}, host))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// setRequester writes who made the request, whatever the request says.
func setRequester(spec *certificatesv1.CertificateSigningRequestSpec, who user.Info) {
	spec.Username = who.GetName()
	spec.UID = who.GetUID()
	spec.Groups = slices.Clone(who.GetGroups())
	spec.Extra = nil
	for key, values := range maps.All(who.GetExtra()) {
		if spec.Extra == nil {
			spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		spec.Extra[key] = slices.Clone(values)
	}
}

// keepTypes puts back all conditions of the given types as they are stored:
// this endpoint has no say in them. Each stays at the place where the writer
// left it, as clients look for their own at the end.
func keepTypes(now, was []condition, types ...certificatesv1.RequestConditionType) []condition {
	kept := func(c condition) bool { return slices.Contains(types, c.Type) }
	var stored, out []condition
	for _, c := range was {
		if kept(c) {
			stored = append(stored, c)
		}
	}
	for _, c := range now {
		if !kept(c) {
			out = append(out, c)
			continue
		}
		if i := slices.IndexFunc(stored, func(o condition) bool { return o.Type == c.Type }); i >= 0 {
			out = append(out, stored[i])
			stored = slices.Delete(stored, i, i+1)
		}
	}
	return append(out, stored...)
}

// stamp fills in the times that a writer left out: of an unchanged condition
// those that are stored, else now.
func stamp(conditions, was []condition, now metav1.Time) {
	for i := range conditions {
		c := &conditions[i]
		j := slices.IndexFunc(was, func(o condition) bool { return o.Type == c.Type })
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = now
			if j >= 0 && was[j].Status == c.Status {
				c.LastTransitionTime = was[j].LastTransitionTime
			}
		}
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
			if j >= 0 && was[j].Status == c.Status && was[j].Reason == c.Reason && was[j].Message == c.Message {
				c.LastUpdateTime = was[j].LastUpdateTime
			}
		}
	}
}
