package validate_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Through events.k8s.io an event must say when it happened, be of a known type,
// and stays what it was; through the core group neither holds.
func TestNewEvents(t *testing.T) {
	when := metav1.NewMicroTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	good := &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns", ResourceVersion: "1"},
		InvolvedObject: v1.ObjectReference{Namespace: "ns", Kind: "Pod", Name: "p"}, EventTime: when, Type: "Normal",
		ReportingController: "kubelet", ReportingInstance: "kubelet-n1", Action: "Killing", Reason: "Killing"}
	for name, c := range map[string]struct {
		change func(e *v1.Event)
		create []string
		update []string
	}{
		"good": {func(*v1.Event) {}, nil, nil},
		"no time": {func(e *v1.Event) { e.EventTime = metav1.MicroTime{} }, []string{"eventTime: Required value"},
			[]string{"eventTime: Invalid value"}},
		"type": {func(e *v1.Event) { e.Type = "Odd" }, []string{`type: Invalid value: "": has invalid value: Odd`},
			[]string{"type: Invalid value"}},
		"no reporter": {func(e *v1.Event) { e.ReportingController = "" }, []string{"reportingController: Required value"},
			[]string{"reportingController: Invalid value"}},
		"message": {func(e *v1.Event) { e.Message = "other" }, nil, []string{"message: Invalid value"}},
		"old fields": {func(e *v1.Event) { e.Count, e.Source.Component = 2, "x" },
			[]string{"count: Invalid value", "source: Invalid value"}, []string{"source: Invalid value", "count: Invalid value"}},
		"series of one": {func(e *v1.Event) { e.Series = &v1.EventSeries{Count: 1, LastObservedTime: when} },
			[]string{"series.count: Invalid value"}, []string{"series.count: Invalid value"}},
		"series": {func(e *v1.Event) { e.Series = &v1.EventSeries{Count: 2, LastObservedTime: when} }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			changed := good.DeepCopy()
			c.change(changed)
			compare(t, validate.NewEvent(changed), c.create)
			compare(t, validate.NewEventUpdate(changed, good), c.update)
		})
	}
	old := good.DeepCopy()
	old.EventTime, old.Type, old.Message = metav1.MicroTime{}, "Odd", "other"
	compare(t, checkCreate(old), nil)
	compare(t, checkUpdate(old, good), nil)
}
