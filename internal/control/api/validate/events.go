package validate

import (
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Events are stored in the spelling of the core group. What comes in through
// events.k8s.io/v1 has stricter rules, whose errors name the core fields, as
// upstream's do.

// Event checks an event that came in through the core group.
func Event(e *v1.Event) field.ErrorList { return event(e, "reportingComponent") }

// NewEvent checks an event that came in through events.k8s.io, which knows no
// way to leave out when it happened.
func NewEvent(e *v1.Event) field.ErrorList {
	all := event(e, "reportingController")
	all = append(all, eventSeries(e.Series)...)
	if e.EventTime.IsZero() {
		all = append(all, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != v1.EventTypeNormal && e.Type != v1.EventTypeWarning {
		all = append(all, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	for _, f := range []given{{"firstTimestamp", !e.FirstTimestamp.IsZero()}, {"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0}, {"source", e.Source != v1.EventSource{}}} {
		if f.set {
			all = append(all, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return all
}

// NewEventUpdate lets a series go on; what happened does not change.
func NewEventUpdate(changed, old *v1.Event) field.ErrorList {
	var all errs
	if !reflect.DeepEqual(changed.Series, old.Series) {
		all = append(all, eventSeries(changed.Series)...)
	}
	for _, f := range []struct {
		name    string
		now, is any
	}{{"involvedObject", changed.InvolvedObject, old.InvolvedObject}, {"reason", changed.Reason, old.Reason},
		{"message", changed.Message, old.Message}, {"source", changed.Source, old.Source},
		{"firstTimestamp", changed.FirstTimestamp, old.FirstTimestamp}, {"lastTimestamp", changed.LastTimestamp, old.LastTimestamp},
		{"count", changed.Count, old.Count}, {"type", changed.Type, old.Type}, {"action", changed.Action, old.Action},
		{"related", changed.Related, old.Related}, {"reportingController", changed.ReportingController, old.ReportingController},
		{"reportingInstance", changed.ReportingInstance, old.ReportingInstance}} {
		all = append(all, immutable(field.NewPath(f.name), f.now, f.is)...)
	}
	// Stored times are in microseconds.
	if !changed.EventTime.Time.Truncate(time.Microsecond).Equal(old.EventTime.Time.Truncate(time.Microsecond)) {
		all = append(all, immutable(field.NewPath("eventTime"), changed.EventTime, old.EventTime)...)
	}
	return all
}

// eventSeries wants a series to be of more than one event, and to say when the
// last was seen.
func eventSeries(s *v1.EventSeries) errs {
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

func event(e *v1.Event, reporter string) errs {
	at, about := field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace
	mismatch := errs{field.Invalid(at, about, "does not match event.namespace")}
	if e.EventTime.IsZero() {
		if (about == "" && e.Namespace != "" && e.Namespace != v1.NamespaceDefault) || (about != "" && e.Namespace != about) {
			return mismatch
		}
		return nil
	}
	var all errs
	if about == "" && e.Namespace != v1.NamespaceDefault && e.Namespace != "kube-system" {
		all = append(all, mismatch...)
	}
	all = append(all, named(field.NewPath(reporter), e.ReportingController, validation.IsQualifiedName)...)
	for _, word := range []struct{ name, value string }{{"reportingInstance", e.ReportingInstance}, {"action", e.Action},
		{"reason", e.Reason}} {
		p := field.NewPath(word.name)
		switch {
		case word.value == "":
			all = append(all, field.Required(p, ""))
		case len(word.value) > maxEventWord:
			all = append(all, field.Invalid(p, "", fmt.Sprintf("can have at most %v characters", maxEventWord)))
		}
	}
	if len(e.Message) > maxEventMessage {
		all = append(all, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxEventMessage)))
	}
	return all
}
