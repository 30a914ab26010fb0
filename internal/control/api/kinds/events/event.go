package events

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// event shows the events of the core group in the newer spelling, under stricter rules.
var event = registry.Kind[*corev1.Event]{
	GroupVersion: eventsv1.SchemeGroupVersion, Kind: "Event",
	Resource: "events", ShortNames: []string{"ev"},
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	DefaultGarbageCollectionPolicy: rest.Unsupported,
	AddToScheme:                    addConversions,
	Validate:                       validate.NewEvent, ValidateUpdate: validate.NewEventUpdate,
	Table: table.Event,
	// Stored events carry the values under the core names.
	SelectableFields: registry.Fields[*corev1.Event]{
		Keys: []string{"reason", "type"},
		Aliases: map[string]string{
			"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace",
			"regarding.name": "involvedObject.name", "regarding.uid": "involvedObject.uid",
			"regarding.apiVersion": "involvedObject.apiVersion", "regarding.resourceVersion": "involvedObject.resourceVersion",
			"regarding.fieldPath": "involvedObject.fieldPath", "reportingController": "reportingComponent",
		},
		Values: core.EventFields,
	},
	TTL:          core.EventTTL,
	NoWatchCache: true,
	StoredAs:     schema.GroupResource{Resource: "events"},
}

// addConversions makes core/v1 Event the hub and stored form of both event APIs.
// They describe the same object under other field names:
//
//	core/v1                events.k8s.io/v1
//	involvedObject         regarding
//	message                note
//	reportingComponent     reportingController
//	source                 deprecatedSource
//	first/lastTimestamp    deprecatedFirst/LastTimestamp
//	count                  deprecatedCount
func addConversions(s *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}
	s.AddKnownTypes(internal, &corev1.Event{}, &corev1.EventList{})
	if err := registry.Convert(s, newToCore, coreToNew); err != nil {
		return err
	}
	return registry.Convert(s,
		func(in *eventsv1.EventList, out *corev1.EventList) {
			out.ListMeta = in.ListMeta
			out.Items = registry.ConvertItems(in.Items, newToCore)
		},
		func(in *corev1.EventList, out *eventsv1.EventList) {
			out.ListMeta = in.ListMeta
			out.Items = registry.ConvertItems(in.Items, coreToNew)
		})
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
