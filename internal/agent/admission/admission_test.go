package admission

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/admit"
	"github.com/berth-dev/berth/internal/agent/node"
)

// smallNode is an admission on a node with one cpu, whose pods are what the
// test says.
func smallNode(pods ...*v1.Pod) (*Admission, map[types.UID]chan struct{}) {
	v := node.NewView(nil, nil)
	v.Set(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "old"}},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: apiresource.MustParse("1")}},
	})
	killed := map[types.UID]chan struct{}{}
	vec := func() *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, []string{"l"})
	}
	return &Admission{
		drop: func(types.UID) {}, pinned: func(_, _ *v1.Pod) string { return "" },

		node: v, known: func() []*v1.Pod { return pods }, runs: func(types.UID) bool { return false },
		lives: func(types.UID) bool { return true },
		left:  func(types.UID) <-chan struct{} { return nil },
		kill: func(p *v1.Pod) <-chan struct{} {
			killed[p.UID] = make(chan struct{})
			return killed[p.UID]
		},
		admitted: map[types.UID]*v1.Pod{}, leaving: map[types.UID]<-chan struct{}{}, waiting: map[types.UID]admit.Want{},
		rejections: vec(), preemptions: vec(),
	}, killed
}

func cpuPod(name, cpu string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		Priority: &priority, Containers: []v1.Container{{Name: "app",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: apiresource.MustParse(cpu)}}}},
	}}
}

// TestPreemption: a critical pod gets room from another and waits until that
// one is gone; no one else is held up, and the room is not given away twice.
func TestPreemption(t *testing.T) {
	ctx := context.Background()
	low, critical, small, more := cpuPod("low", "900m", 0), cpuPod("critical", "500m", 2000001000), cpuPod("small", "0", 0),
		cpuPod("more", "600m", 0)
	a, killed := smallNode(low, critical, small, more)
	if r := a.Admit(ctx, low, false); r != nil {
		t.Fatal(r)
	}
	if r := a.Admit(ctx, more, false); r == nil || r.Reason != "OutOfcpu" {
		t.Fatalf("an ordinary pod is answered %+v", r)
	}
	done := make(chan bool)
	go func() { done <- a.Admit(ctx, critical, false) == nil }()
	for {
		a.mu.Lock()
		n := len(a.leaving)
		a.mu.Unlock()
		if n == 1 {
			break
		}
		select {
		case <-done:
			t.Fatal("the critical pod did not wait for its victim")
		default:
		}
	}
	if r := a.Admit(ctx, small, false); r != nil {
		t.Errorf("a pod that fits beside all is held up: %+v", r)
	}
	// Once the victim is gone 500m are free, not 900m.
	if r := a.Admit(ctx, more, false); r == nil {
		t.Error("the room of the victim was given away twice")
	}
	close(killed["low"])
	if !<-done {
		t.Error("the critical pod is refused")
	}
}

// TestRemovedPodsGiveUpTheirRoom: the scheduler no longer counts a pod that was
// deleted by force; the next one is not refused for it but waits for its end.
func TestRemovedPodsGiveUpTheirRoom(t *testing.T) {
	ctx := context.Background()
	old, next := cpuPod("old", "900m", 0), cpuPod("next", "500m", 0)
	a, _ := smallNode(old, next)
	if r := a.Admit(ctx, old, false); r != nil {
		t.Fatal(r)
	}
	over := make(chan struct{})
	a.left = func(uid types.UID) <-chan struct{} {
		if uid == "old" {
			return over
		}
		return nil
	}
	if refused, first := a.decide(next, a.node.Get()); refused != nil || len(first) != 1 {
		t.Errorf("refused %+v, waits for %d", refused, len(first))
	}
	close(over)
	if r := a.Admit(ctx, next, false); r != nil {
		t.Errorf("after its end: %+v", r)
	}
}

// TestAdopted: what an agent before this one started holds its room before
// this agent has met it.
func TestAdopted(t *testing.T) {
	old, next := cpuPod("old", "900m", 0), cpuPod("next", "500m", 0)
	a, _ := smallNode(old, next)
	a.runs = func(uid types.UID) bool { return uid == "old" }
	if r := a.Admit(context.Background(), next, false); r == nil || r.Reason != "OutOfcpu" {
		t.Errorf("beside a pod that runs already: %+v", r)
	}
}

// TestAdoptedAfterAReboot: what runs goes on without asking; what has to be
// started again is asked for what it had alone, and is gone without it.
func TestAdoptedAfterAReboot(t *testing.T) {
	warm, cold := cpuPod("warm", "100m", 0), cpuPod("cold", "100m", 0)
	a, _ := smallNode(warm, cold)
	var dropped []types.UID
	a.drop = func(uid types.UID) { dropped = append(dropped, uid) }
	a.lives = func(uid types.UID) bool { return uid == "warm" }
	a.give = func(*v1.Pod) (string, string, bool) { return "UnexpectedAdmissionError", "no device", false }
	if r := a.Admit(context.Background(), warm, true); r != nil {
		t.Errorf("a running pod: %+v", r)
	}
	if r := a.Admit(context.Background(), cold, true); r == nil || r.Reason != "UnexpectedAdmissionError" || r.Message != "no device" {
		t.Errorf("a pod that has to start anew: %+v", r)
	}
	if len(dropped) != 1 || dropped[0] != "cold" || a.admitted["cold"] != nil || a.admitted["warm"] == nil {
		t.Errorf("dropped %v, counted %v", dropped, a.admitted)
	}
}

// TestDevicesOfOneThatStillEnds: what a pod had alone that was deleted by force
// is waited for, and only once.
func TestDevicesOfOneThatStillEnds(t *testing.T) {
	old, next := cpuPod("old", "1m", 0), cpuPod("next", "1m", 0)
	a, _ := smallNode(old, next)
	over, free := make(chan struct{}), false
	a.left = func(uid types.UID) <-chan struct{} {
		if uid == "old" {
			return over
		}
		return nil
	}
	asked := make(chan bool, 2)
	a.before = []Opinion{func(*v1.Pod) (string, string, bool) {
		asked <- free
		return "UnexpectedAdmissionError", "no device", free
	}}
	done := make(chan bool)
	go func() { done <- a.Admit(context.Background(), next, false) == nil }()
	if <-asked {
		t.Error("the device was free at once")
	}
	free = true
	close(over)
	if taken := <-done; !taken || !<-asked {
		t.Error("the pod was refused although the device is free now")
	}
	free = false
	if a.Admit(context.Background(), next, false) == nil {
		t.Error("taken without a device")
	}
}

// TestStaleNode: a pod is refused for a label only if the API says so too.
func TestStaleNode(t *testing.T) {
	p := cpuPod("p", "1m", 0)
	p.Spec.NodeSelector = map[string]string{"zone": "new"}
	a, _ := smallNode(p)
	fresh := a.node.Get().DeepCopy()
	a.node = relabeled{a.node, fresh}
	if r := a.Admit(context.Background(), p, false); r == nil || r.Reason != "NodeAffinity" {
		t.Errorf("with the old label: %+v", r)
	}
	fresh.Labels["zone"] = "new"
	if r := a.Admit(context.Background(), p, false); r != nil {
		t.Errorf("with the new label: %+v", r)
	}
}

// relabeled is a Node whose labels have changed since it was last told of.
type relabeled struct {
	Node
	fresh *v1.Node
}

func (r relabeled) Fetch(context.Context) *v1.Node { return r.fresh }
