package why

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// Entry is one line of the stream of what happens: an event, a decision or a
// restart. docs/why.md documents its JSON.
type Entry struct {
	Time   time.Time   `json:"time"`
	Object journal.Ref `json:"object"`
	// Source is event, decision or restart.
	Source string `json:"source"`
	What   string `json:"what"`
	// Because tells the cause; empty where nothing told one.
	Because string `json:"because,omitempty"`
	By      string `json:"by,omitempty"`
}

// FromEvent is the entry of an event.
func FromEvent(e *v1.Event) Entry {
	o := e.InvolvedObject
	out := Entry{Time: eventTime(e), Source: "event", What: e.Reason, Because: brief(e.Message, 300), By: e.Source.Component,
		Object: journal.Ref{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}}
	if out.By == "" {
		out.By = e.ReportingController
	}
	if e.Count > 1 {
		out.What += fmt.Sprintf(" (%d times)", e.Count)
	}
	return out
}

// FromRecord is the entry of a decision.
func FromRecord(r journal.Record) Entry {
	var because []string
	for _, f := range r.Because {
		because = append(because, f.Name+" "+f.Value)
	}
	return Entry{Time: r.Time, Source: "decision", Object: r.Object, What: r.Decision, Because: brief(strings.Join(because, ", "), 300),
		By: r.Part}
}

// Restarts are the entries of the restarts of containers between two states of
// a pod. Before is nil for a pod that was not seen before.
func Restarts(before, after *v1.Pod) (out []Entry) {
	if before == nil {
		return nil
	}
	for _, s := range statuses(after) {
		was := int32(-1)
		for _, o := range statuses(before) {
			if o.Name == s.Name {
				was = o.RestartCount
			}
		}
		t := s.LastTerminationState.Terminated
		if was < 0 || s.RestartCount <= was || t == nil {
			continue
		}
		end := containerEnd(&World{}, after, s, t)
		out = append(out, Entry{Time: t.FinishedAt.Time, Source: "restart", By: after.Spec.NodeName, Because: end.Cause,
			Object: journal.Ref{Kind: "Pod", Namespace: after.Namespace, Name: after.Name, UID: string(after.UID)},
			What:   fmt.Sprintf("container %s restarted (%d times in all)", s.Name, s.RestartCount)})
	}
	return out
}

// Wanted says whether an entry is about a namespace and object; empty fields
// match everything. Objects without a namespace belong to no namespace asked for.
func (e *Entry) Wanted(ref journal.Ref) bool {
	o := e.Object
	return (ref.Namespace == "" || ref.Namespace == o.Namespace) && (ref.Kind == "" || ref.Kind == o.Kind) &&
		(ref.Name == "" || ref.Name == o.Name)
}

// String is the entry for a person: time, object, what, and because of what.
func (e Entry) String() string {
	object := strings.ToLower(e.Object.Kind) + " " + e.Object.Name
	if e.Object.Namespace != "" {
		object = strings.ToLower(e.Object.Kind) + " " + e.Object.Namespace + "/" + e.Object.Name
	}
	var b strings.Builder
	wrap(&b, e.Time.UTC().Format("15:04:05")+" ", "         ", fmt.Sprintf("%s: %s (%s)", object, e.What, e.By))
	if e.Because != "" {
		wrap(&b, "         because ", "                 ", e.Because)
	}
	return b.String()
}
