package journal

import (
	"strings"
	"testing"
	"time"
)

// TestStoryFoldsRoutine: twenty rule changes are one line between the
// decisions about the node, each of which stays where it was, twice if taken
// twice.
func TestStoryFoldsRoutine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	node := Ref{Kind: "Node", Name: "n1"}
	var records []Record
	add := func(part, decision, fact string, routine bool) {
		records = append(records, Record{Time: at, Part: part, Object: node, Decision: decision,
			Because: []Fact{{Name: "cause", Value: fact}}, Routine: routine})
		at = at.Add(time.Second)
	}
	add("agent", "registered", "new", false)
	add("health", "marked Unknown", "silence", false)
	for range 20 {
		add("proxy", "changed service rules", "rows", true)
	}
	add("proxy", "changed service rules", "the last rows", true)
	add("health", "marked Unknown", "silence again", false)
	var out strings.Builder
	if err := WriteStory(&out, records); err != nil {
		t.Fatal(err)
	}
	want := `2026-01-02T03:04:00Z  Node n1: registered (agent)
    cause: new
2026-01-02T03:04:01Z  Node n1: marked Unknown (health)
    cause: silence
2026-01-02T03:04:22Z  Node n1: changed service rules (proxy, 21 times since 2026-01-02T03:04:02Z; the last)
    cause: the last rows
2026-01-02T03:04:23Z  Node n1: marked Unknown (health)
    cause: silence again
`
	if out.String() != want {
		t.Errorf("told:\n%swant:\n%s", out.String(), want)
	}
}
