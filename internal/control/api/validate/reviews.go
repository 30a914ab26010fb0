package validate

import (
	"fmt"
	"reflect"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
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
	kind[events.Event, *events.Event]{scope: namespaced, name: pathvalidation.ValidatePathSegmentName, create: newEventGood, update: newEventUpdate},
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
	all = append(all, reviewSelectors(resource)...)
	bare := m.DeepCopy()
	bare.ManagedFields = nil
	if !reflect.DeepEqual(*bare, metav1.ObjectMeta{Namespace: m.Namespace}) {
		all = append(all, field.Invalid(field.NewPath("metadata"), field.OmitValueType{}, "must be empty"))
	}
	return all
}

// reviewSelectors wants the selectors of a question to be written in one way, and well.
func reviewSelectors(a *authorization.ResourceAttributes) errs {
	if a == nil {
		return nil
	}
	p := specPath.Child("resourceAttributes")
	var all errs
	if s := a.FieldSelector; s != nil {
		at := p.Child("fieldSelector")
		list := make([]metav1.LabelSelectorRequirement, len(s.Requirements))
		for i, r := range s.Requirements {
			list[i] = metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values}
		}
		all = append(all, reviewSelector(at, s.RawSelector, list, func(key string) bool { return key == "" })...)
	}
	if s := a.LabelSelector; s != nil {
		all = append(all, reviewSelector(p.Child("labelSelector"), s.RawSelector, s.Requirements, nil)...)
	}
	return all
}

func reviewSelector(p *field.Path, raw string, list []metav1.LabelSelectorRequirement, badKey func(string) bool) errs {
	switch {
	case raw != "" && len(list) > 0:
		return errs{field.Invalid(p.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && len(list) == 0:
		return errs{field.Required(p.Child("requirements"), "when "+p.String()+" is specified, requirements or rawSelector is required")}
	}
	var all errs
	for i, r := range list {
		at := p.Child("requirements").Index(i)
		if badKey == nil {
			all = append(all, metavalidation.ValidateLabelSelectorRequirement(r, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: true}, at)...)
			continue
		}
		if badKey(r.Key) {
			all = append(all, field.Required(at.Child("key"), "must be specified"))
		}
		values := at.Child("values")
		switch r.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(r.Values) == 0 {
				all = append(all, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				all = append(all, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
			}
		default:
			all = append(all, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
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

// eventSeries wants a series to be of more than one event, and to say when the last was seen.
func eventSeries(s *events.EventSeries) errs {
	if s == nil {
		return nil
	}
	var all errs
	if s.Count < 2 {
		all = append(all, field.Invalid(field.NewPath("series", "count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		all = append(all, field.Required(field.NewPath("series", "lastObservedTime"), ""))
	}
	return all
}

// forbidOld refuses what only the older spelling has.
func forbidOld(e *events.Event) errs {
	var all errs
	for _, f := range []given{{"firstTimestamp", !e.DeprecatedFirstTimestamp.IsZero()}, {"lastTimestamp", !e.DeprecatedLastTimestamp.IsZero()},
		{"count", e.DeprecatedCount != 0}, {"source", e.DeprecatedSource != v1.EventSource{}}} {
		if f.set {
			all = append(all, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return all
}

// newEventUpdate lets a series go on; what happened does not change.
func newEventUpdate(changed, old *events.Event) errs {
	var all errs
	if !reflect.DeepEqual(changed.Series, old.Series) {
		all = append(all, eventSeries(changed.Series)...)
	}
	for _, f := range []struct {
		name    string
		now, is any
	}{{"involvedObject", changed.Regarding, old.Regarding}, {"reason", changed.Reason, old.Reason}, {"message", changed.Note, old.Note},
		{"source", changed.DeprecatedSource, old.DeprecatedSource}, {"firstTimestamp", changed.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp},
		{"lastTimestamp", changed.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp}, {"count", changed.DeprecatedCount, old.DeprecatedCount},
		{"type", changed.Type, old.Type}, {"action", changed.Action, old.Action}, {"related", changed.Related, old.Related},
		{"reportingController", changed.ReportingController, old.ReportingController}, {"reportingInstance", changed.ReportingInstance, old.ReportingInstance}} {
		all = append(all, immutable(field.NewPath(f.name), f.now, f.is)...)
	}
	if !changed.EventTime.Time.Truncate(time.Microsecond).Equal(old.EventTime.Time.Truncate(time.Microsecond)) {
		all = append(all, immutable(field.NewPath("eventTime"), changed.EventTime, old.EventTime)...)
	}
	return all
}

// newEventGood checks an event in the newer spelling, which knows no way to
// leave out when it happened and who says so.
func newEventGood(e *events.Event) errs {
	if e.EventTime.IsZero() {
		return errs{field.Required(field.NewPath("eventTime"), "")}
	}
	all := eventSeries(e.Series)
	if e.Type != v1.EventTypeNormal && e.Type != v1.EventTypeWarning {
		all = append(all, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	all = append(all, forbidOld(e)...)
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
