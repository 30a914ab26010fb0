package view

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/journal"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// stock is Objects as plain lists.
type stock struct {
	nodes      []*v1.Node
	pods       []*v1.Pod
	namespaces []*v1.Namespace
	workloads  map[string][]metav1.Object
}

func (s *stock) Nodes() []*v1.Node { return slices.Clone(s.nodes) }

func (s *stock) Node(name string) *v1.Node {
	for _, n := range s.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func (s *stock) Pods(ns string) (out []*v1.Pod) {
	for _, p := range s.pods {
		if ns == "" || p.Namespace == ns {
			out = append(out, p)
		}
	}
	return out
}

func (s *stock) PodsOn(node string) (out []*v1.Pod) {
	for _, p := range s.pods {
		if p.Spec.NodeName == node {
			out = append(out, p)
		}
	}
	return out
}

func (s *stock) Pod(ns, name string) *v1.Pod {
	for _, p := range s.pods {
		if p.Namespace == ns && p.Name == name {
			return p
		}
	}
	return nil
}

func (s *stock) Namespaces() []*v1.Namespace                        { return slices.Clone(s.namespaces) }
func (s *stock) Workloads(kind, _ string) []metav1.Object           { return s.workloads[kind] }
func (s *stock) Services(string) []*v1.Service                      { return nil }
func (s *stock) Service(string, string) *v1.Service                 { return nil }
func (s *stock) Slices(string, string) []*discoveryv1.EndpointSlice { return nil }
func (s *stock) Claim(string, string) *v1.PersistentVolumeClaim     { return nil }
func (s *stock) Workload(kind, namespace, name string) (o metav1.Object) {
	for _, w := range s.workloads[kind] {
		if w.GetNamespace() == namespace && w.GetName() == name {
			return w
		}
	}
	return nil
}

// can are rights: "resource namespace", and "*" for all.
type can map[string]bool

func (c can) List(resource, namespace string) bool { return c["*"] || c[resource+" "+namespace] }
func (c can) Path(string) bool                     { return c["*"] }

func node(name string, ready v1.ConditionStatus) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
		Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(start)}},
		Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourcePods: resource.MustParse("110")}}}
}

func pod(ns, name, on string, state v1.ContainerState) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, CreationTimestamp: metav1.NewTime(start)},
		Spec:   v1.PodSpec{NodeName: on, Containers: []v1.Container{{Name: "app", Image: "reg/app:1"}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "app", State: state}}}}
}

var (
	runs    = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(start.Add(5 * time.Second))}}
	crashes = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
)

// TestWrongFirst: nodes come before workloads, pods of one owner are one row,
// and what is only starting is not wrong yet.
func TestWrongFirst(t *testing.T) {
	yes := true
	owned := func(name string) *v1.Pod {
		p := pod("shop", name, "a", crashes)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: types.UID("db"), Controller: &yes}}
		return p
	}
	fresh := pod("shop", "fresh", "", v1.ContainerState{})
	fresh.Status.Phase = v1.PodPending
	s := &Snapshot{Objects: &stock{nodes: []*v1.Node{node("a", v1.ConditionTrue), node("b", v1.ConditionUnknown)},
		pods: []*v1.Pod{owned("db-1"), owned("db-0"), pod("shop", "well", "a", runs), fresh}}}
	show := func(now time.Time) (out []string) {
		for _, p := range ClusterView(s, can{"*": true}, Query{}, now).Wrong {
			out = append(out, fmt.Sprintf("%s %s %d %s", p.Object.Kind, p.Object.Name, p.Count, p.State.Word))
		}
		return out
	}
	want := []string{"Node b 0 Unknown", "StatefulSet db 2 CrashLoopBackOff"}
	if got := show(start.Add(settle)); !slices.Equal(got, want) {
		t.Errorf("wrong are %q, not %q", got, want)
	}
	want = append(want, "Pod fresh 1 Pending")
	if got := show(start.Add(settle + time.Second)); !slices.Equal(got, want) {
		t.Errorf("after a while wrong are %q, not %q", got, want)
	}
	v := ClusterView(s, can{"pods other": true}, Query{}, start)
	if len(v.Wrong) != 0 || v.Nodes != nil || v.Pods.All != 0 || v.Sees {
		t.Errorf("a user without rights sees %+v", v)
	}
}

// TestPages walks through a list and meets every row once, in order.
func TestPages(t *testing.T) {
	st := &stock{}
	for i := range 1234 {
		st.pods = append(st.pods, pod("shop", fmt.Sprintf("p-%04d", i*7919%1234), "a", runs))
	}
	s, seen, after := &Snapshot{Objects: st}, []string{}, ""
	for {
		v := PodsView(s, can{"*": true}, Query{After: after}, start)
		if v.Page.Matching != 1234 || len(v.Page.Rows) > PageSize {
			t.Fatalf("%d rows of %d", len(v.Page.Rows), v.Page.Matching)
		}
		for _, r := range v.Page.Rows {
			seen = append(seen, r.Name)
		}
		if after = v.Page.Next; after == "" {
			break
		}
	}
	if len(seen) != 1234 || !slices.IsSorted(seen) || seen[0] != "p-0000" || len(slices.Compact(seen)) != 1234 {
		t.Errorf("the pages hold %d rows", len(seen))
	}
}

// TestTimeline: each step has its time, exact where an event tells it.
func TestTimeline(t *testing.T) {
	p := pod("shop", "web", "a", runs)
	at := func(s int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(s) * time.Second)) }
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: at(1)},
		{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue, LastTransitionTime: at(2)},
		{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: at(0)}}
	events := []*v1.Event{{Reason: "Pulled", Message: `Successfully pulled image "reg/app:1" in 1.5s`, LastTimestamp: at(4)}}
	steps, length := timeline(p, events, start.Add(10*time.Second))
	var got []string
	for _, s := range steps {
		got = append(got, fmt.Sprintf("%s %s %d+%d %t", s.Name, s.Took, s.Left, s.Width, s.Open))
	}
	want := []string{"scheduled 1s 0+10 false", "sandbox ready 1s 10+10 false", "image of app 1.5s 25+15 false", "start app 1s 40+10 false",
		"ready 0s 50+50 true"}
	if !slices.Equal(got, want) || length != 10*time.Second {
		t.Errorf("in %s:\n%q, not\n%q", length, got, want)
	}
}

// TestWhyPending groups the nodes by why they do not take the pod.
func TestWhyPending(t *testing.T) {
	big := pod("shop", "big", "", v1.ContainerState{})
	big.Status = v1.PodStatus{Phase: v1.PodPending}
	big.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("8")}
	tainted := node("c", v1.ConditionTrue)
	tainted.Spec.Taints = []v1.Taint{{Key: "gpu", Effect: v1.TaintEffectNoSchedule}}
	s := &Snapshot{Objects: &stock{nodes: []*v1.Node{node("b", v1.ConditionTrue), tainted, node("a", v1.ConditionTrue)},
		pods: []*v1.Pod{big}}}
	v, ok := PodView(s, can{"*": true}, "shop", "big", start)
	if !ok || len(v.Refused) != 2 || v.Refused[0].Count != 2 || !slices.Equal(v.Refused[0].Nodes, []string{"a", "b"}) ||
		v.Refused[1].Reason != "taint gpu:NoSchedule is not tolerated" {
		t.Errorf("refused: %+v", v.Refused)
	}
	if v, ok := PodView(s, can{"pods shop": true}, "shop", "big", start); !ok || v.Refused != nil {
		t.Errorf("a user who may not list nodes sees them: %+v", v.Refused)
	}
}

// TestNodeHidesPods counts pods of others, but does not name them.
func TestNodeHidesPods(t *testing.T) {
	s := &Snapshot{Objects: &stock{nodes: []*v1.Node{node("a", v1.ConditionTrue)}, pods: []*v1.Pod{pod("shop", "mine", "a", runs),
		pod("bank", "theirs", "a", runs)}}, Records: func(journal.Ref) []journal.Record {
		return []journal.Record{{Decision: "evicted bank/theirs"}}
	}}
	v, ok := NodeView(s, can{"nodes ": true, "pods shop": true}, "a", Query{}, start)
	if !ok || len(v.Pods.Rows) != 1 || v.Pods.Rows[0].Name != "mine" || v.Hidden != 1 || len(v.Story) != 0 || v.Row.Pods.Used != 2 {
		t.Errorf("the node shows %+v", v)
	}
	if v, ok := NodeView(s, can{"*": true}, "a", Query{}, start); !ok || len(v.Story) != 1 {
		t.Errorf("a user with every right does not see the decision: %+v", v.Story)
	}
	if _, ok := NodeView(s, can{"pods ": true}, "a", Query{}, start); ok {
		t.Error("a user who may not list nodes sees one")
	}
}
