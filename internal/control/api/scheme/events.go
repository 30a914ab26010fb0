package scheme

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// addEvents makes core/v1 Event the hub and stored form of both event APIs.
// They describe the same object under other field names:
//
//	core/v1                events.k8s.io/v1
//	involvedObject         regarding
//	message                note
//	reportingComponent     reportingController
//	source                 deprecatedSource
//	first/lastTimestamp    deprecatedFirst/LastTimestamp
//	count                  deprecatedCount
func addEvents(s *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}
	s.AddKnownTypes(internal, &corev1.Event{}, &corev1.EventList{})
	if err := convert(s, newToCore, coreToNew); err != nil {
		return err
	}
	return convert(s,
		func(in *eventsv1.EventList, out *corev1.EventList) {
			out.ListMeta = in.ListMeta
			out.Items = convertItems(in.Items, newToCore)
		},
		func(in *corev1.EventList, out *eventsv1.EventList) {
			out.ListMeta = in.ListMeta
			out.Items = convertItems(in.Items, coreToNew)
		})
}

// convertItems keeps nil apart from empty, which JSON shows.
func convertItems[A, B any](in []A, item func(*A, *B)) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i := range in {
		item(&in[i], &out[i])
	}
	return out
}

func newToCore(in *eventsv1.Event, out *corev1.Event) {
	out.ObjectMeta = in.ObjectMeta
	out.EventTime = in.EventTime
	out.Series = nil
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.Action = in.Action
	out.Reason = in.Reason
	out.InvolvedObject = in.Regarding
	out.Related = in.Related
	out.Message = in.Note
	out.Type = in.Type
	out.Source = in.DeprecatedSource
	out.FirstTimestamp = in.DeprecatedFirstTimestamp
	out.LastTimestamp = in.DeprecatedLastTimestamp
	out.Count = in.DeprecatedCount
}

func coreToNew(in *corev1.Event, out *eventsv1.Event) {
	out.ObjectMeta = in.ObjectMeta
	out.EventTime = in.EventTime
	out.Series = nil
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.Action = in.Action
	out.Reason = in.Reason
	out.Regarding = in.InvolvedObject
	out.Related = in.Related
	out.Note = in.Message
	out.Type = in.Type
	out.DeprecatedSource = in.Source
	out.DeprecatedFirstTimestamp = in.FirstTimestamp
	out.DeprecatedLastTimestamp = in.LastTimestamp
	out.DeprecatedCount = in.Count
}

// convert registers a pair of functions that cannot fail.
func convert[A, B any](s *runtime.Scheme, there func(*A, *B), back func(*B, *A)) error {
	err := s.AddConversionFunc((*A)(nil), (*B)(nil), func(a, b any, _ conversion.Scope) error {
		there(a.(*A), b.(*B))
		return nil
	})
	if err != nil {
		return err
	}
	return s.AddConversionFunc((*B)(nil), (*A)(nil), func(b, a any, _ conversion.Scope) error {
		back(b.(*B), a.(*A))
		return nil
	})
}
