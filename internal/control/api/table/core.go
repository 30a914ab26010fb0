package table

import (
	"fmt"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

var Namespace = of(func(now time.Time, n *v1.Namespace) []any {
	return []any{n.Name, string(n.Status.Phase), created(now, n)}
}, nameColumn, text("Status", "Whether the namespace is in use or going away."), ageColumn)

var ConfigMap = of(func(now time.Time, c *v1.ConfigMap) []any {
	return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), created(now, c)}
}, nameColumn, text("Data", "Number of keys."), ageColumn)

var Secret = of(func(now time.Time, s *v1.Secret) []any {
	return []any{s.Name, string(s.Type), int64(len(s.Data)), created(now, s)}
}, nameColumn, text("Type", v1.Secret{}.SwaggerDoc()["type"]), text("Data", "Number of keys."), ageColumn)

var ServiceAccount = of(func(now time.Time, s *v1.ServiceAccount) []any {
	return []any{s.Name, created(now, s)}
}, nameColumn, ageColumn)

var PodTemplate = of(func(_ time.Time, t *v1.PodTemplate) []any {
	names, images := templateCells(&t.Template.Spec)
	return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
}, nameColumn, text("Containers", containersColumn.Description), text("Images", imagesColumn.Description),
	text("Pod Labels", "Labels of pods made from the template."))

var ResourceQuota = of(func(now time.Time, q *v1.ResourceQuota) []any {
	requests, limits := quotaUse(q)
	return []any{q.Name, requests, limits, created(now, q)}
}, nameColumn, text("Request", "Used and allowed requests and counts."), text("Limit", "Used and allowed limits."), ageColumn)

func quotaUse(q *v1.ResourceQuota) (requests, limits string) {
	names := make([]string, 0, len(q.Status.Hard))
	for name := range q.Status.Hard {
		names = append(names, string(name))
	}
	sort.Strings(names)
	var r, l []string
	for _, name := range names {
		used, hard := q.Status.Used[v1.ResourceName(name)], q.Status.Hard[v1.ResourceName(name)]
		cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(name, "limits.") {
			l = append(l, cell)
		} else {
			r = append(r, cell)
		}
	}
	return strings.Join(r, ", "), strings.Join(l, ", ")
}

// Event prints both spellings of an event.
var Event = Layout{
	columns: []metav1.TableColumnDefinition{
		text("Last Seen", "When it happened last."),
		text("Type", v1.Event{}.SwaggerDoc()["type"]),
		text("Reason", v1.Event{}.SwaggerDoc()["reason"]),
		text("Object", "What it is about."),
		wide("Subobject", "The part of the object it is about."),
		wide("Source", v1.Event{}.SwaggerDoc()["source"]),
		text("Message", v1.Event{}.SwaggerDoc()["message"]),
		wide("First Seen", "When it happened first."),
		wide("Count", "How often it happened."),
		{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: metaDoc["name"]},
	},
	row: func(now time.Time, obj runtime.Object) (metav1.TableRow, bool) {
		switch e := obj.(type) {
		case *v1.Event:
			return metav1.TableRow{Cells: eventCells(now, e)}, true
		case *events.Event:
			return metav1.TableRow{Cells: eventCells(now, coreEvent(e))}, true
		}
		return metav1.TableRow{}, false
	},
}

func eventCells(now time.Time, e *v1.Event) []any {
	first := age(now, e.FirstTimestamp)
	if e.FirstTimestamp.IsZero() {
		first = age(now, metav1.Time(e.EventTime))
	}
	last, count := age(now, e.LastTimestamp), e.Count
	if e.LastTimestamp.IsZero() {
		last = first
	}
	if e.Series != nil {
		last, count = age(now, metav1.Time(e.Series.LastObservedTime)), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source, host := e.Source.Component, e.Source.Host
	if source == "" {
		source, host = e.ReportingController, e.ReportingInstance
	}
	if host != "" {
		source += ", " + host
	}
	return []any{last, e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

// coreEvent is the core spelling of a newer event, as far as cells need it.
func coreEvent(e *events.Event) *v1.Event {
	c := &v1.Event{
		ObjectMeta: e.ObjectMeta, InvolvedObject: e.Regarding, Reason: e.Reason, Message: e.Note, Source: e.DeprecatedSource,
		FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp, Count: e.DeprecatedCount,
		Type: e.Type, EventTime: e.EventTime, ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
	if e.Series != nil {
		c.Series = &v1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return c
}

// ComponentStatus shows the condition that the component is healthy.
var ComponentStatus = of(func(_ time.Time, c *v1.ComponentStatus) []any {
	status, message, problem := "Unknown", "", ""
	for _, condition := range c.Conditions {
		if condition.Type != v1.ComponentHealthy {
			continue
		}
		status, message, problem = "Unhealthy", condition.Message, condition.Error
		if condition.Status == v1.ConditionTrue {
			status = "Healthy"
		}
	}
	return []any{c.Name, status, message, problem}
}, nameColumn, text("Status", "Status of the component conditions"), text("Message", "Message of the component conditions"),
	text("Error", "Error of the component conditions"))
