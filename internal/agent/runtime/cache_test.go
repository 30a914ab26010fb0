package runtime

import (
	"fmt"
	"math/rand"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

var labels = map[string]string{kubelettypes.KubernetesPodUIDLabel: "u", kubelettypes.KubernetesPodNameLabel: "p",
	kubelettypes.KubernetesContainerNameLabel: "app"}

func newsOf(id string, state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{Id: id, State: state, CreatedAt: 1, Labels: labels,
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"}}
}

func sandbox(state runtimeapi.PodSandboxState) *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{Id: "sb", State: state, CreatedAt: 1, Labels: labels, Metadata: &runtimeapi.PodSandboxMetadata{},
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}
}

// TestLateNews: whatever the order in which the same events arrive, and however
// often, the picture ends the same, and on the way it never goes back.
func TestLateNews(t *testing.T) {
	events := []*runtimeapi.ContainerEventResponse{}
	for _, s := range []runtimeapi.ContainerState{0, 1, 2} { // created, running, exited
		events = append(events, &runtimeapi.ContainerEventResponse{
			ContainerId: "c", PodSandboxStatus: sandbox(runtimeapi.PodSandboxState_SANDBOX_READY),
			ContainersStatuses: []*runtimeapi.ContainerStatus{newsOf("c", s), newsOf("gone", runtimeapi.ContainerState_CONTAINER_EXITED)},
		})
	}
	events = append(events,
		&runtimeapi.ContainerEventResponse{ContainerId: "gone", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT},
		&runtimeapi.ContainerEventResponse{ContainerId: "sb", PodSandboxStatus: sandbox(runtimeapi.PodSandboxState_SANDBOX_NOTREADY)})
	for seed := range int64(200) {
		rnd := rand.New(rand.NewSource(seed))
		c := newCache(func(types.UID) {})
		var state State
		ended, removed := false, false
		for _, i := range append(rnd.Perm(len(events)), rnd.Perm(len(events))...) {
			c.Event(events[i])
			p := c.Pod("u")
			removed = removed || i == 3
			if p == nil {
				continue
			}
			for _, n := range p.Containers {
				if n.ID == "gone" && removed {
					t.Fatalf("seed %d: a removed container came back", seed)
				}
				if n.ID == "c" {
					if n.State < state {
						t.Fatalf("seed %d: a container went from %s to %s", seed, state, n.State)
					}
					state = n.State
				}
			}
			if len(p.Sandboxes) > 0 {
				if ended && p.Sandboxes[0].Ready {
					t.Fatalf("seed %d: a stopped sandbox is ready again", seed)
				}
				ended = ended || !p.Sandboxes[0].Ready
			}
		}
		if p := c.Pod("u"); len(p.Containers) != 1 || p.Containers[0].State != Exited || p.Sandboxes[0].Ready ||
			p.Sandboxes[0].IPs[0] != "10.0.0.1" {
			t.Fatalf("seed %d: the picture ends as %+v", seed, p)
		}
	}
}

// TestSweep: a relist removes what it did not find, but not what came while it
// was being read.
func TestSweep(t *testing.T) {
	notified := 0
	c := newCache(func(types.UID) { notified++ })
	c.SetContainer("sb", newsOf("old", runtimeapi.ContainerState_CONTAINER_RUNNING))
	c.SetContainer("sb", newsOf("kept", runtimeapi.ContainerState_CONTAINER_RUNNING))
	mark := c.mark()
	c.SetContainer("sb", newsOf("new", runtimeapi.ContainerState_CONTAINER_RUNNING))
	if n := c.sweep(map[string]struct{}{"kept": {}}, mark); n != 1 {
		t.Errorf("%d were removed, want 1", n)
	}
	if got := fmt.Sprint(len(c.Pod("u").Containers), c.Pod("u").Newest("app") != nil, notified); got != "2 true 4" {
		t.Errorf("containers, newest, notices: %s", got)
	}
	if c.SetContainer("sb", newsOf("old", runtimeapi.ContainerState_CONTAINER_RUNNING)) {
		t.Error("what was removed came back")
	}
	if len(c.Running()) != 2 {
		t.Errorf("%d are running", len(c.Running()))
	}
}

// TestSameNews: what changes nothing wakes no one.
func TestSameNews(t *testing.T) {
	notified := 0
	c := newCache(func(types.UID) { notified++ })
	for range 5 {
		c.SetSandbox(sandbox(runtimeapi.PodSandboxState_SANDBOX_READY))
		c.SetContainer("sb", newsOf("c", runtimeapi.ContainerState_CONTAINER_RUNNING))
	}
	if notified != 2 {
		t.Errorf("%d notices of 2 news", notified)
	}
}

func BenchmarkEvent(b *testing.B) {
	c := newCache(func(types.UID) {})
	e := &runtimeapi.ContainerEventResponse{ContainerId: "c", PodSandboxStatus: sandbox(runtimeapi.PodSandboxState_SANDBOX_READY),
		ContainersStatuses: []*runtimeapi.ContainerStatus{newsOf("c", runtimeapi.ContainerState_CONTAINER_RUNNING)}}
	b.ReportAllocs()
	for b.Loop() {
		c.Event(e)
	}
}

// contradicts: an answer tells of one container twice.
func contradicts(e *runtimeapi.ContainerEventResponse) bool {
	seen := map[string]bool{}
	for _, s := range e.GetContainersStatuses() {
		if seen[s.GetId()] {
			return true
		}
		seen[s.GetId()] = true
	}
	return false
}

// FuzzAnswers takes in whatever a runtime may say, with any field missing: the
// picture stays whole and in order.
func FuzzAnswers(f *testing.F) {
	for _, e := range []*runtimeapi.ContainerEventResponse{
		{},
		{ContainerId: "c", ContainersStatuses: []*runtimeapi.ContainerStatus{{}}},
		{PodSandboxStatus: &runtimeapi.PodSandboxStatus{}, ContainersStatuses: []*runtimeapi.ContainerStatus{{Labels: labels}}},
		{PodSandboxStatus: &runtimeapi.PodSandboxStatus{Labels: labels},
			ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT},
		{PodSandboxStatus: sandbox(runtimeapi.PodSandboxState_SANDBOX_READY),
			ContainersStatuses: []*runtimeapi.ContainerStatus{newsOf("c", 1), newsOf("", 77)}},
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e runtimeapi.ContainerEventResponse
		if proto.Unmarshal(b, &e) != nil {
			return
		}
		notified := 0
		c := newCache(func(types.UID) { notified++ })
		c.Event(&e)
		first := notified
		c.Event(&e)
		if notified != first && !contradicts(&e) {
			t.Errorf("the same answer twice is news: %v", &e)
		}
		for _, uid := range c.Pods() {
			p := c.Pod(uid)
			if uid == "" || p.Empty() {
				t.Errorf("an empty pod %q is kept", uid)
			}
			for i, n := range p.Containers {
				if owner, ok := c.Owner(n.ID); !ok || owner != uid {
					t.Errorf("container %q of %q belongs to %q", n.ID, uid, owner)
				}
				if i > 0 && n.Attempt > p.Containers[i-1].Attempt {
					t.Errorf("attempts are out of order")
				}
			}
		}
	})
}
