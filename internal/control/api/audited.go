package api

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/berth-dev/berth/internal/control/api/scheme"
)

// The library's handlers encode each object that is created or updated for the
// audit log, also where only metadata is recorded, and drop what they encoded:
// half of what the log costs a request. They leave it out for an event whose level
// is not set yet. So the handlers of such requests get an event of their own,
// whose level is set once they have read the object (which admission tells), and
// what they note in it is copied into the request's event when they are done. The
// log is the same (TestAuditLogOfMetadata), but for what only the body of a request
// says that is refused before admission (its objectRef has what the URL says), and
// for UIDs that clients make up.

// metadataOnly hides the events of requests whose object is not recorded from
// the handlers behind it.
func metadataOnly(set *scheme.Set, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		event := audit.AuditContextFrom(r.Context())
		if !ok || event == nil || !event.Enabled() || event.GetEventLevel() != auditinternal.LevelMetadata || !writesObject(set, info) {
			next.ServeHTTP(w, r)
			return
		}
		inner := audit.WithAuditContext(context.Background())
		audit.WithAuditID(inner, event.AuditID())
		a := &auditedRequest{Context: r.Context(), inner: inner, event: audit.AuditContextFrom(inner)}
		answer := &auditedAnswer{ResponseWriter: w, request: a}
		defer a.finish(set, event, answer)
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(answer), r.WithContext(a))
	})
}

// writesObject tells of requests for which the library's create and update
// handlers answer, with an object of a kind that is compiled in.
func writesObject(set *scheme.Set, info *request.RequestInfo) bool {
	if !info.IsResourceRequest || info.Verb != "create" && info.Verb != "update" || !set.Scheme.IsGroupRegistered(info.APIGroup) {
		return false
	}
	return info.Subresource == "" || info.Subresource == "status" || info.Subresource == "binding"
}

// auditedRequest is the context of a request with an event of the handlers' own.
type auditedRequest struct {
	context.Context //nolint:containedctx // it is a context
	inner           context.Context
	event           *audit.AuditContext
	judged          atomic.Bool // admission has seen the object
}

type auditedKey struct{}

func (a *auditedRequest) Value(key any) any {
	if _, mine := key.(auditedKey); mine {
		return a
	}
	if v := a.inner.Value(key); v != nil {
		return v
	}
	return a.Context.Value(key)
}

// begin records what the object is called, as the library does, and lets the
// handlers note the answer from now on.
func (a *auditedRequest) begin(attributes admission.Attributes) {
	if a.event.Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil) != nil {
		return // admission asks again when a write is tried again
	}
	a.judged.Store(true)
	if object, err := meta.Accessor(attributes.GetObject()); err == nil {
		named := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName(),
			UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()}}
		audit.LogRequestObject(a.Context, named, schema.GroupVersion{}, attributes.GetResource(), attributes.GetSubresource(), nothing{})
	}
}

// finish copies what the handlers noted into the request's event.
func (a *auditedRequest) finish(set *scheme.Set, event *audit.AuditContext, answer *auditedAnswer) {
	audit.AddAuditAnnotationsMap(a.Context, a.event.GetEventAnnotations())
	status := a.event.GetEventResponseStatus()
	if status == nil && len(answer.refusal) > 0 {
		// Refused before its object was read; the answer says why.
		decoded, err := runtime.Decode(set.Codecs.UniversalDeserializer(), answer.refusal)
		if said, ok := decoded.(*metav1.Status); ok && err == nil {
			status = &metav1.Status{Status: said.Status, Message: said.Message, Reason: said.Reason, Details: said.Details, Code: said.Code}
		}
	}
	if status != nil {
		if code := event.GetEventResponseStatus(); code != nil && code.Code != 0 {
			status.Code = code.Code
		}
		event.SetEventResponseStatus(status)
	}
}

// auditedAnswer keeps the text of a refusal that comes before admission.
type auditedAnswer struct {
	http.ResponseWriter
	request *auditedRequest
	failed  bool
	refusal []byte
}

var _ responsewriter.UserProvidedDecorator = &auditedAnswer{}

// mostRefusal bounds what is kept of a refusal, in bytes.
const mostRefusal = 64 << 10

func (w *auditedAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *auditedAnswer) WriteHeader(code int) {
	w.failed = code >= http.StatusBadRequest
	w.ResponseWriter.WriteHeader(code)
}

func (w *auditedAnswer) Write(text []byte) (int, error) {
	if w.failed && !w.request.judged.Load() && len(w.refusal)+len(text) <= mostRefusal {
		w.refusal = append(w.refusal, text...)
	}
	return w.ResponseWriter.Write(text)
}

// audited tells requests when their object has been read.
type audited struct{ admission.Interface }

func (c audited) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if of, ok := ctx.Value(auditedKey{}).(*auditedRequest); ok {
		of.begin(a)
	}
	if m, ok := c.Interface.(admission.MutationInterface); ok {
		return m.Admit(ctx, a, o)
	}
	return nil
}

func (c audited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if of, ok := ctx.Value(auditedKey{}).(*auditedRequest); ok {
		of.begin(a)
	}
	if v, ok := c.Interface.(admission.ValidationInterface); ok {
		return v.Validate(ctx, a, o)
	}
	return nil
}

// nothing is a serializer of objects that nobody will read.
type nothing struct{ runtime.NegotiatedSerializer }

func (nothing) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON}}
}
func (nothing) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return nothing{}
}
func (nothing) Encode(runtime.Object, io.Writer) error { return nil }
func (nothing) Identifier() runtime.Identifier         { return "nothing" }
