package why

import (
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/journal"
)

// ending are words of decisions that end an object.
var ending = []string{"deleted", "evicted", "preempt", "killed", "removed", "terminat", "deleting"}

// lastDecision is the record that tells most of an object's end: the newest
// that ended it, or else the newest.
func lastDecision(records []journal.Record) *journal.Record {
	for i := len(records) - 1; i >= 0; i-- {
		for _, word := range ending {
			if strings.Contains(records[i].Decision, word) {
				return &records[i]
			}
		}
	}
	if len(records) > 0 {
		return &records[len(records)-1]
	}
	return nil
}

// missing answers for what the API does not have.
func missing(w *World) *Answer {
	s := w.Subject
	if r := lastDecision(w.Records); r != nil {
		a := found(Missing, "Gone", "%s does not exist any more; last decision: %s (%s%s)", refText(s), r.Decision, r.Part, causeOf(r)).
			from("API", "journal").fact("decided", "%s", r.Time.UTC().Format(time.RFC3339))
		a.Facts = append(a.Facts, r.Because...)
		return a
	}
	if events := w.events(s.Kind, s.Namespace, s.Name); len(events) > 0 {
		e := events[0]
		return found(Missing, "Gone", "%s does not exist any more; last event: %s: %s", refText(s), e.Reason, brief(e.Message, 160)).
			from("API", "events").fact("event", "%s ago, by %s", Age(w.Now, eventTime(e)), e.Source.Component)
	}
	return found(Missing, "NeverSeen", "%s does not exist, and neither journal nor events remember it", refText(s)).from("API").
		remedy("check the name and the namespace: berth kubectl get %s --all-namespaces", strings.ToLower(s.Kind))
}

// causeOf is the fact of a record that says most.
func causeOf(r *journal.Record) string {
	for _, name := range []string{"cause", "reason", "signal", "taint", "refused", "node"} {
		for _, f := range r.Because {
			if f.Name == name {
				return ": " + name + " " + brief(f.Value, 100)
			}
		}
	}
	if len(r.Because) > 0 {
		return ": " + r.Because[0].Name + " " + brief(r.Because[0].Value, 100)
	}
	return ""
}

// withoutAPI answers while the API server does not: from what this host
// knows of itself, and from the journal.
func withoutAPI(w *World) *Answer {
	s := w.Subject
	why := brief(w.APIError, 140)
	if len(w.Host) > 0 {
		why = w.Host[0].Name + ": " + brief(w.Host[0].Value, 120)
	}
	a := found(Unknown, "APIDown", "the API server does not answer (%s); the journal knows nothing of %s", why, refText(s))
	if r := lastDecision(w.Records); r != nil {
		a = found(Unknown, "APIDown", "the API server does not answer (%s); last decision about %s: %s (%s%s)", why, refText(s), r.Decision,
			r.Part, causeOf(r))
	}
	a.fact("API server", "%s", brief(w.APIError, 200))
	a.Facts = append(a.Facts, w.Host...)
	return a.remedy("berth status shows the parts; `berth up` starts a cluster that is down")
}
