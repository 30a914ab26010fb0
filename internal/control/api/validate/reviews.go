package validate

import (
	"reflect"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// request makes a row for an object that is asked and answered and never
// stored: it has no metadata worth checking and no update.
type request[T any, PT pointer[T]] struct {
	create func(obj PT) errs
}

func (r request[T, PT]) rules() (reflect.Type, rules) {
	return reflect.TypeOf(PT(nil)), rules{
		create: func(obj runtime.Object) errs { return r.create(obj.(PT)) },
		update: func(runtime.Object, runtime.Object) errs { return nil },
	}
}

var requestKinds = []row{
	request[authentication.TokenRequest, *authentication.TokenRequest]{tokenRequest},
	request[authentication.TokenReview, *authentication.TokenReview]{func(r *authentication.TokenReview) errs {
		return present(specPath.Child("token"), r.Spec.Token)
	}},
	request[authentication.SelfSubjectReview, *authentication.SelfSubjectReview]{func(*authentication.SelfSubjectReview) errs { return nil }},
	request[authorization.SubjectAccessReview, *authorization.SubjectAccessReview]{func(r *authorization.SubjectAccessReview) errs {
		return append(subject(&r.Spec), access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)...)
	}},
	request[authorization.LocalSubjectAccessReview, *authorization.LocalSubjectAccessReview]{localReview},
	request[authorization.SelfSubjectAccessReview, *authorization.SelfSubjectAccessReview]{func(r *authorization.SelfSubjectAccessReview) errs {
		return access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	}},
	request[authorization.SelfSubjectRulesReview, *authorization.SelfSubjectRulesReview]{func(r *authorization.SelfSubjectRulesReview) errs {
		return present(specPath.Child("namespace"), r.Spec.Namespace)
	}},
	request[v1.Binding, *v1.Binding]{PodBinding},
	kind[events.Event, *events.Event]{scope: namespaced, create: newEventGood},
}

func tokenRequest(r *authentication.TokenRequest) errs {
	at, seconds := specPath.Child("expirationSeconds"), deref(r.Spec.ExpirationSeconds)
	switch {
	case seconds < minTokenLifetime:
		return errs{field.Invalid(at, seconds, "may not specify a duration less than 10 minutes")}
	case seconds > maxTokenLifetime:
		return errs{field.Invalid(at, seconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

// access wants a question about a resource or about a path, not both, and no
// metadata, which would suggest that the question is stored.
func access(m *metav1.ObjectMeta, resource *authorization.ResourceAttributes, path *authorization.NonResourceAttributes) errs {
	var all errs
	switch {
	case resource != nil && path != nil:
		all = append(all, field.Invalid(specPath.Child("nonResourceAttributes"), path, "cannot be specified in combination with resourceAttributes"))
	case resource == nil && path == nil:
		all = append(all, field.Invalid(specPath.Child("resourceAttributes"), resource, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	bare := m.DeepCopy()
	bare.ManagedFields = nil
	if !reflect.DeepEqual(*bare, metav1.ObjectMeta{Namespace: m.Namespace}) {
		all = append(all, field.Invalid(field.NewPath("metadata"), field.OmitValueType{}, "must be empty"))
	}
	return all
}

func subject(s *authorization.SubjectAccessReviewSpec) errs {
	if s.User == "" && len(s.Groups) == 0 {
		return errs{field.Invalid(specPath.Child("user"), s.User, "at least one of user or group must be specified")}
	}
	return nil
}

func localReview(r *authorization.LocalSubjectAccessReview) errs {
	all := append(subject(&r.Spec), access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		all = append(all, field.Invalid(specPath.Child("resourceAttributes", "namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if r.Spec.NonResourceAttributes != nil {
		all = append(all, field.Invalid(specPath.Child("nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	return all
}

// newEventGood checks an event in the newer spelling, which knows no way to
// leave out when it happened and who says so.
func newEventGood(e *events.Event) errs {
	if e.EventTime.IsZero() {
		return errs{field.Required(field.NewPath("eventTime"), "")}
	}
	all := oneOf(field.NewPath("type"), e.Type, v1.EventTypeNormal, v1.EventTypeWarning)
	old := eventGood(&v1.Event{ObjectMeta: e.ObjectMeta, InvolvedObject: e.Regarding, EventTime: e.EventTime, ReportingController: e.ReportingController,
		ReportingInstance: e.ReportingInstance, Action: e.Action, Reason: e.Reason, Message: e.Note})
	for _, problem := range old {
		// The same fields have other names here.
		switch problem.Field {
		case "involvedObject.namespace":
			problem.Field = "regarding.namespace"
		case "reportingComponent":
			problem.Field = "reportingController"
		case "message":
			problem.Field = "note"
		}
	}
	return append(all, old...)
}
