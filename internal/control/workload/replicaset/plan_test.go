package replicaset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Unix(100000, 0)

func pod(name string, mods ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: v1.PodSpec{NodeName: "n-" + name}, Status: v1.PodStatus{Phase: v1.PodRunning,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}}}
	for _, m := range mods {
		m(p)
	}
	return p
}

func on(n string) func(*v1.Pod)         { return func(p *v1.Pod) { p.Spec.NodeName = n } }
func phase(x v1.PodPhase) func(*v1.Pod) { return func(p *v1.Pod) { p.Status.Phase = x } }
func unready(p *v1.Pod)                 { p.Status.Conditions = nil }
func worth(n string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Annotations = map[string]string{deletionCost: n} }
}
func dying(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
func readyFor(d time.Duration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-d)) }
}

// TestVictims deletes all but the last of each list, in the order listed.
func TestVictims(t *testing.T) {
	for name, pods := range map[string][]*v1.Pod{
		"unassigned, pending, unready, ready": {pod("d", on("")), pod("c", phase(v1.PodPending)), pod("b", unready), pod("a")},
		"cheap before dear":                   {pod("b", worth("-5")), pod("c"), pod("a", worth("10"))},
		"doubled up first":                    {pod("c", on("x")), pod("b", on("x")), pod("a", on("y"))},
		"lately ready first":                  {pod("b", readyFor(time.Second)), pod("a", readyFor(30*time.Minute))},
	} {
		t.Run(name, func(t *testing.T) {
			onNode := map[string]int{}
			for _, p := range pods {
				onNode[p.Spec.NodeName]++
			}
			shuffled := append([]*v1.Pod{}, pods...)
			for i := range shuffled {
				shuffled[i] = pods[len(pods)-1-i]
			}
			plan := Make(&Set{Replicas: 1}, shuffled, onNode, now)
			if len(plan.Delete) != len(pods)-1 {
				t.Fatalf("deletes %d", len(plan.Delete))
			}
			for _, d := range plan.Delete {
				if d.Name == "a" {
					t.Errorf("deletes the most valuable pod a: %s", names(plan.Delete))
				}
			}
			if strings.Contains(name, ",") && names(plan.Delete) != "d c b " {
				t.Errorf("order %s, want d c b", names(plan.Delete))
			}
		})
	}
}

func names(pods []*v1.Pod) (s string) {
	for _, p := range pods {
		s += p.Name + " "
	}
	return s
}

func TestReplacesAndCounts(t *testing.T) {
	pods := []*v1.Pod{pod("a"), pod("b", dying), pod("c", phase(v1.PodFailed)), pod("d", readyFor(4*time.Second))}
	plan := Make(&Set{Replicas: 4, MinReady: 10, Generation: 7}, pods, nil, now)
	got := fmt.Sprintf("create %d, replicas %d ready %d available %d terminating %d, observed %d, again %s", plan.Create,
		plan.Status.Replicas,
		plan.Status.ReadyReplicas, plan.Status.AvailableReplicas, *plan.Status.TerminatingReplicas, plan.Status.ObservedGeneration,
		plan.Wake)
	if want := "create 2, replicas 2 ready 2 available 1 terminating 1, observed 7, again 6s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if plan := Make(&Set{Replicas: 4, Deleting: true}, pods, nil, now); plan.Create != 0 {
		t.Error("creates pods for a set that is being deleted")
	}
}
