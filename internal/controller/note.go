package controller

import (
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
)

// Note is one thing a controller decided or did. Tell writes it everywhere it
// belongs, so that `berth why`, the log and the object's events never differ.
type Note struct {
	// Part is the journal's name for who decided; empty is the controller's.
	Part string
	// Kind and Object are what it is about. APIVersion is needed for an event
	// about anything but core/v1.
	Kind, APIVersion string
	Object           metav1.Object
	// Decision and Because go to the journal and the log. Without a decision
	// there is only an event.
	Decision string
	Because  []journal.Fact
	// Level is the log line's; zero is Info.
	Level slog.Level
	// Event, if it has a reason, is recorded about the object.
	Event Event
}

// Event is what a Note tells the users of an object. To is required, and Type
// is v1.EventTypeNormal unless set.
type Event struct {
	To              record.EventRecorder
	Type            string
	Reason, Message string
}

// Tell writes a note to the journal, to the log and, if it has one, as an event.
func (e Env) Tell(n Note) {
	ref := journal.Ref{Kind: n.Kind, Namespace: n.Object.GetNamespace(), Name: n.Object.GetName(), UID: string(n.Object.GetUID())}
	if n.Decision != "" {
		part := n.Part
		if part == "" {
			part = e.Name
		}
		e.Journal.Append(journal.Record{Time: time.Now(), Part: part, Object: ref, Decision: n.Decision, Because: n.Because})
		if e.Log.Enabled(context.Background(), n.Level) {
			attrs := []slog.Attr{slog.String("kind", n.Kind), slog.String("object", Key(n.Object))}
			for _, f := range n.Because {
				attrs = append(attrs, slog.String(f.Name, f.Value))
			}
			e.Log.LogAttrs(context.Background(), n.Level, n.Decision, attrs...)
		}
	}
	if n.Event.Reason == "" || n.Event.To == nil {
		return
	}
	version, kind := n.APIVersion, n.Event.Type
	if version == "" {
		version = "v1"
	}
	if kind == "" {
		kind = v1.EventTypeNormal
	}
	n.Event.To.Event(&v1.ObjectReference{Kind: n.Kind, APIVersion: version, Namespace: ref.Namespace, Name: ref.Name,
		UID: n.Object.GetUID()},
		kind, n.Event.Reason, n.Event.Message)
}

// Note tells a decision that has no event; the log has it for who debugs.
func (e Env) Note(kind string, obj metav1.Object, decision string, because ...journal.Fact) {
	e.Tell(Note{Kind: kind, Object: obj, Decision: decision, Because: because, Level: slog.LevelDebug})
}
