package core

import (
	"time"

	v1 "k8s.io/api/core/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var event = registry.Kind[*v1.Event]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Event",
	Resource: "events", ShortNames: []string{"ev"},
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	DefaultGarbageCollectionPolicy: rest.Unsupported,
	ValidateName:                   pathvalidation.ValidatePathSegmentName,
	Validate:                       validate.Event,
	Table:                          table.Event,
	SelectableFields: registry.Fields[*v1.Event]{
		Keys: []string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type"},
		Values: EventFields,
	},
	TTL:          EventTTL,
	NoWatchCache: true,
}

// EventTTL is how long an event is kept after its last write.
const EventTTL = time.Hour

// EventFields are what field selectors of both event APIs may ask.
func EventFields(e *v1.Event, set fields.Set) {
	about, source := e.InvolvedObject, e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	set["involvedObject.kind"] = about.Kind
	set["involvedObject.namespace"] = about.Namespace
	set["involvedObject.name"] = about.Name
	set["involvedObject.uid"] = string(about.UID)
	set["involvedObject.apiVersion"] = about.APIVersion
	set["involvedObject.resourceVersion"] = about.ResourceVersion
	set["involvedObject.fieldPath"] = about.FieldPath
	set["reason"] = e.Reason
	set["reportingComponent"] = e.ReportingController
	set["source"] = source
	set["type"] = e.Type
}
