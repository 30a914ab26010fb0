// Package why tells why an object is as it is: one cause in the first line,
// the facts it follows from, and what to do.
//
// It is pure. Next says what has to be read of the API for an answer, Explain
// answers from what was read. A shell (internal/why/ask) reads in between.
package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// Schema names the form of an Answer in JSON. Fields are added to it, never
// removed or given another meaning.
const Schema = "berth.dev/why/v1"

// Answer is what is known about an object. docs/why.md documents its JSON.
type Answer struct {
	Schema string      `json:"schema"`
	Object journal.Ref `json:"object"`
	// State is one of healthy, waiting, failing, ended, missing and unknown.
	State liveState `json:"state"`
	// Code names the rule that found the cause; it does not change between versions.
	Code string `json:"code"`
	// Cause is one sentence: the object, its field or rule, and who holds it.
	Cause string `json:"cause"`
	// Holder is the object that has to change, if it is another one.
	Holder *journal.Ref `json:"holder,omitempty"`
	// Field is the path of the field that has to change.
	Field string         `json:"field,omitempty"`
	Facts []journal.Fact `json:"facts,omitempty"`
	// Remedies are steps for a person, the likeliest first.
	Remedies []string `json:"remedies,omitempty"`
	// Sources are what the answer was read from.
	Sources []string `json:"sources,omitempty"`
	// Unread is what could not be read, each with the reason.
	Unread []string `json:"unread,omitempty"`
	// Decisions are the journal's records about the object, oldest first.
	Decisions []journal.Record `json:"decisions,omitempty"`
}

// liveState is how the object is.
type liveState string

// The states. Waiting may end by itself, failing does not.
const (
	Healthy liveState = "healthy"
	Waiting liveState = "waiting"
	Failing liveState = "failing"
	Ended   liveState = "ended"
	Missing liveState = "missing"
	Unknown liveState = "unknown"
)

// World is what was read for one question.
type World struct {
	Now     time.Time
	Subject journal.Ref
	// Objects are all objects that were read, of any kind; events are among them.
	Objects []metav1.Object
	// Done are the reads that were tried, with the error text of those that
	// failed and "" for those that did not. An object that does not exist is in
	// Absent instead.
	Done   map[Read]string
	Absent map[Read]bool
	// Logs are the last lines of the ended instance of a container, by its name.
	Logs map[string]string
	// Records are the journal's about the subject, oldest first.
	Records []journal.Record
	// APIError says why the API does not answer; empty if it does.
	APIError string
	// Host is what the berth process on this host says of itself: each
	// entry is a part that is not well, and why.
	Host []journal.Fact
}

// Read is one request to the API: an object by its name, or a list of those
// that match. It changes nothing.
type Read struct {
	Kind, Namespace, Name string
	// Labels and Fields select from a list.
	Labels, Fields string
	// Container is set for the log of the container's last instance.
	Container string
}

// String is the read in words, for what could not be read.
func (r Read) String() string {
	switch {
	case r.Container != "":
		return fmt.Sprintf("log of container %s of Pod %s/%s", r.Container, r.Namespace, r.Name)
	case r.Name != "":
		return refText(journal.Ref{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name})
	case r.Namespace != "":
		return "list of " + r.Kind + " in " + r.Namespace
	}
	return "list of " + r.Kind
}

func refText(r journal.Ref) string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// all are the objects of one type that were read.
func all[T any](w *World) []*T {
	var out []*T
	for _, o := range w.Objects {
		if t, ok := o.(any).(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// one is the object of a type with that name, or nil.
func one[T any](w *World, namespace, name string) *T {
	for _, o := range w.Objects {
		if t, ok := o.(any).(*T); ok && o.GetName() == name && o.GetNamespace() == namespace {
			return t
		}
	}
	return nil
}

// absent says that the API was asked for an object and has none.
func (w *World) absent(kind, namespace, name string) bool {
	return w.Absent[Read{Kind: kind, Namespace: namespace, Name: name}]
}

// listed says that a read succeeded.
func (w *World) listed(r Read) bool {
	err, tried := w.Done[r]
	return tried && err == ""
}

// unreadable is the answer where a read that decides failed; nil if it did not.
func (w *World) unreadable(r Read) *Answer {
	if err := w.Done[r]; err != "" {
		return found(Unknown, "NotReadable", "the cause cannot be told: %s may not be read: %s", r, brief(err, 200)).
			remedy("ask with a user that may read it (--kubeconfig)")
	}
	return nil
}

// events are those about an object, the newest first.
func (w *World) events(kind, namespace, name string) []*v1.Event {
	var out []*v1.Event
	for _, e := range all[v1.Event](w) {
		o := e.InvolvedObject
		if o.Kind == kind && o.Name == name && (o.Namespace == namespace || namespace == "") {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b *v1.Event) int { return eventTime(b).Compare(eventTime(a)) })
	return out
}

// lastEvent is the newest event with one of the reasons, or nil.
func lastEvent(events []*v1.Event, reasons ...string) *v1.Event {
	for _, e := range events {
		if slices.Contains(reasons, e.Reason) {
			return e
		}
	}
	return nil
}

func eventTime(e *v1.Event) time.Time {
	at := e.LastTimestamp.Time
	for _, t := range []time.Time{e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time} {
		if at.IsZero() {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}

// found starts an answer of a rule.
func found(s liveState, code, format string, args ...any) *Answer {
	return &Answer{State: s, Code: code, Cause: fmt.Sprintf(format, args...)}
}

func (a *Answer) at(field string) *Answer {
	a.Field = cmp.Or(a.Field, field)
	return a
}

func (a *Answer) held(kind, namespace, name string) *Answer {
	if a.Holder == nil {
		a.Holder = &journal.Ref{Kind: kind, Namespace: namespace, Name: name}
	}
	return a
}

func (a *Answer) fact(name, format string, args ...any) *Answer {
	if v := fmt.Sprintf(format, args...); v != "" {
		a.Facts = append(a.Facts, journal.Fact{Name: name, Value: v})
	}
	return a
}

func (a *Answer) remedy(format string, args ...any) *Answer {
	a.Remedies = append(a.Remedies, fmt.Sprintf(format, args...))
	return a
}

func (a *Answer) from(sources ...string) *Answer {
	a.Sources = append(a.Sources, sources...)
	return a
}

// Explain answers from what was read.
func Explain(w *World) Answer {
	a := explain(w)
	a.Schema, a.Object, a.Decisions = Schema, w.Subject, w.Records
	if len(w.Records) > 0 {
		a.from("journal")
	}
	slices.Sort(a.Sources)
	a.Sources = slices.Compact(a.Sources)
	for r, err := range w.Done {
		if err != "" {
			a.Unread = append(a.Unread, r.String()+": "+err)
		}
	}
	slices.Sort(a.Unread)
	return *a
}

func explain(w *World) *Answer {
	s := w.Subject
	k, known := kinds[s.Kind]
	if w.APIError != "" {
		return withoutAPI(w)
	}
	subject := Read{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name}
	if err := w.Done[subject]; err != "" {
		return found(Unknown, "NotReadable", "%s may not be read: %s", refText(s), err).from("API").
			remedy("ask with a user that may get it (--kubeconfig)")
	}
	if w.Absent[subject] || !known {
		return missing(w)
	}
	if a := k.explain(w, s.Namespace, s.Name); a != nil {
		return a
	}
	return missing(w)
}

// Age is how long ago something was, in the words of kubectl.
func Age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// brief cuts a message of a component to one line of at most n bytes.
func brief(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= n {
		return s
	}
	cut := n - 3
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "..."
}
