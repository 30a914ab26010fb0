package why

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
)

// TestStream: an event, a decision and a restart become lines that name the
// object, what happened and because of what.
func TestStream(t *testing.T) {
	event := FromEvent(&v1.Event{InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}, Reason: "BackOff", Count: 3,
		Message: "Back-off pulling image", LastTimestamp: metav1.NewTime(now), Source: v1.EventSource{Component: "kubelet"}})
	decision := FromRecord(journal.Record{Time: now, Part: "eviction", Object: journal.Ref{Kind: "Pod", Namespace: "ns", Name: "p"},
		Decision: "deleted", Because: []journal.Fact{{Name: "node", Value: "n"}, {Name: "cause", Value: "taint x:NoExecute"}}})
	pod := func(restarts int32) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: v1.PodSpec{NodeName: "n"},
			Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", RestartCount: restarts,
				LastTerminationState: v1.ContainerState{
					Terminated: &v1.ContainerStateTerminated{ExitCode: 3, FinishedAt: metav1.NewTime(now)}}}}}}
	}
	restarts := Restarts(pod(1), pod(2))
	if len(restarts) != 1 || len(Restarts(pod(2), pod(2))) != 0 || len(Restarts(nil, pod(2))) != 0 {
		t.Fatalf("restarts: %v", restarts)
	}
	var b strings.Builder
	for _, e := range []Entry{event, decision, restarts[0]} {
		b.WriteString(e.String())
		if !e.Wanted(journal.Ref{Namespace: "ns"}) || e.Wanted(journal.Ref{Namespace: "other"}) || e.Wanted(journal.Ref{Kind: "Node"}) {
			t.Errorf("%v is wanted by the wrong", e)
		}
	}
	want := `12:00:00 pod ns/p: BackOff (3 times) (kubelet)
         because Back-off pulling image
12:00:00 pod ns/p: deleted (eviction)
         because node n, cause taint x:NoExecute
12:00:00 pod ns/p: container c restarted (2 times in all) (n)
         because container c exits with code 3
`
	if got := b.String(); got != want {
		t.Errorf("stream:\n%s\nwant:\n%s", got, want)
	}
}
