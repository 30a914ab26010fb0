package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRingKeepsTheNewestAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	limits := Limits{SegmentBytes: 500, Segments: 3}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := func(i int) Record {
		return Record{Time: at, Part: "health", Object: Ref{Kind: "Node", Name: fmt.Sprintf("n%d", i%2)}, Decision: fmt.Sprint("decided ",
			i),
			Because: []Fact{{"number", fmt.Sprint(i)}}}
	}
	for start := 0; start < 100; start += 50 {
		r, err := Open(dir, limits)
		if err != nil {
			t.Fatal(err)
		}
		for i := start; i < start+50; i++ {
			r.Append(rec(i))
			if got := r.Query(rec(i).Object); len(got) == 0 || got[len(got)-1].Decision != rec(i).Decision {
				t.Fatalf("record %d is not found right after it was appended", i)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(names) != 3 {
		t.Fatalf("%d files, want 3", len(names))
	}
	// A crash in the middle of a line.
	f, err := os.OpenFile(names[2], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"time":`) //nolint:errcheck // a torn write is the point
	f.Close()                 //nolint:errcheck // see above
	r, err := Open(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Query(Ref{Kind: "Node", Name: "n1"})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || len(got) > 10 || got[len(got)-1].Decision != "decided 99" {
		t.Fatalf("after the restart: %d records", len(got))
	}
	var text strings.Builder
	if err := WriteStory(&text, got[len(got)-1:]); err != nil {
		t.Fatal(err)
	}
	if want := "2026-01-01T00:00:00Z  Node n1: decided 99 (health)\n    number: 99\n"; text.String() != want {
		t.Errorf("story %q, want %q", text.String(), want)
	}
}
