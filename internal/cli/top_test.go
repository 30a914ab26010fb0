package cli

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/journal"
)

// TestTopOrders: the largest comes first, names break ties, and a row shows the
// share of what was asked for.
func TestTopOrders(t *testing.T) {
	rows := []usage{
		{Namespace: "a", Name: "small", CPU: 5, Memory: 300 << 20, namespace: true},
		{Namespace: "a", Name: "large", CPU: 250, OfCPU: 500, Memory: 64 << 20, OfMemory: 128 << 20, Restarts: 2, namespace: true},
		{Namespace: "a", Name: "also", CPU: 5, Memory: 1 << 20, namespace: true},
	}
	for by, want := range map[string]string{"cpu": "large also small", "memory": "small large also", "name": "also large small"} {
		sortUsage(rows, by)
		if got := rows[0].Name + " " + rows[1].Name + " " + rows[2].Name; got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
	sortUsage(rows, "name") // the orders above come in any order
	var b strings.Builder
	printUsage(&b, "POD", rows[1:2])
	if got := strings.Join(strings.Fields(b.String()), " "); got !=
		"POD CPU REQUESTED MEMORY REQUESTED RESTARTS a/large 250m 500m (50 %) 64Mi 128Mi (50 %) 2" {
		t.Errorf("row: %s", got)
	}
}

// TestPastEvents: the newest entries of the object asked for, oldest first.
func TestPastEvents(t *testing.T) {
	event := func(name, about string, minute int) *v1.Event {
		return &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Reason: name, LastTimestamp: metav1.NewTime(
			time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)), InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "ns",
			Name: about}}
	}
	client := fake.NewClientset(event("Third", "p", 3), event("First", "p", 1), event("Other", "q", 4), event("Second", "p", 2))
	var b strings.Builder
	s := stream{out: &b, want: journal.Ref{Kind: "Pod", Namespace: "ns", Name: "p"}}
	if _, err := s.past(t.Context(), client, &whyOptions{}, 2, false); err != nil {
		t.Fatal(err)
	}
	if want := "00:02:00 pod ns/p: Second ()\n00:03:00 pod ns/p: Third ()\n"; b.String() != want {
		t.Errorf("got:\n%s", b.String())
	}
}
