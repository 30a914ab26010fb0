package health

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/journal"
)

type records []journal.Record

func (r *records) Append(rec journal.Record) { *r = append(*r, rec) }

// TestStartIsNoChange: the suspension of a cluster whose nodes are not ready yet
// is in force, but neither an event nor the journal tells of it.
func TestStartIsNoChange(t *testing.T) {
	var kept records
	events := record.NewFakeRecorder(4)
	s := &shell{Config: Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Journal: &kept, Events: events}}
	for _, kind := range []Kind{Suspend, Resume} {
		s.record(time.Now(), Decision{Kind: kind, AtStart: true, Cause: Cause{Zone: nowhere}})
	}
	if len(kept)+len(events.Events) != 0 {
		t.Errorf("a start is told of: %v, %d events", kept, len(events.Events))
	}
	for _, kind := range []Kind{Suspend, Resume} {
		s.record(time.Now(), Decision{Kind: kind, Cause: Cause{Zone: nowhere}})
	}
	if len(kept) != 2 || len(events.Events) != 2 {
		t.Errorf("a change is not told of: %v, %d events", kept, len(events.Events))
	}
}
