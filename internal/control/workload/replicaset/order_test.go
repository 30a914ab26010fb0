package replicaset

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
)

func restarted(n, sidecar, setup int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}, {Name: "setup"}}
		p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "sidecar", RestartCount: sidecar},
			{Name: "setup", RestartCount: setup}}
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", RestartCount: n}, {Name: "b"}}
	}
}

func age(d time.Duration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}

// TestOrderOfDeletion: each rule on its own, and each before the next one: the
// first pod is to go, although all rules after that one speak for the second
// (https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-a-replicaset).
func TestOrderOfDeletion(t *testing.T) {
	const node = "n"
	dear, cheap := worth("10"), worth("-10")
	for _, c := range []struct {
		why         string
		first, last *v1.Pod
	}{
		{"not on a node", pod("z", on("")), pod("a", on(node), phase(v1.PodPending), unready, cheap)},
		{"pending", pod("z", on(node), phase(v1.PodPending), dear), pod("a", on(node), phase(v1.PodUnknown), unready, cheap)},
		{"unknown", pod("z", on(node), phase(v1.PodUnknown), dear), pod("a", on(node), unready, cheap)},
		{"not ready", pod("z", on(node), unready, dear), pod("a", on(node), cheap)},
		{"cheaper", pod("z", on("alone"), worth("-1")), pod("a", on("full"))},
		{"a cost that is no number counts as none", pod("z", on("alone"), worth("-1")), pod("a", on("full"), worth("much"))},
		{"a node with more of its kind", pod("z", on("full")), pod("a", on("alone"), readyFor(time.Second))},
		{"ready for less time", pod("z", on(node), readyFor(time.Minute)), pod("a", on(node), restarted(9, 9, 9))},
		{"restarted more often", pod("z", on(node), restarted(2, 0, 0)), pod("a", on(node), restarted(1, 9, 9), age(time.Second))},
		{"sidecar restarted more often", pod("z", on(node), restarted(1, 2, 0)), pod("a", on(node), restarted(1, 1, 9), age(time.Second))},
		{"younger", pod("z", on(node), age(time.Minute)), pod("a", on(node))},
		{"of one age, by UID", pod("a", on(node)), pod("z", on(node))},
		{"of about one age, by UID", pod("a", on(node), age(60*time.Minute)), pod("z", on(node), age(59*time.Minute))},
	} {
		onNode := map[string]int{"full": 3, "alone": 1, node: 2}
		if !lessValuable(c.first, c.last, onNode, now) || lessValuable(c.last, c.first, onNode, now) {
			t.Errorf("%s: does not decide", c.why)
		}
	}
}

// TestOrderIsOne: for any pods there is one order, whatever order they come in:
// otherwise a sort leads anywhere.
func TestOrderIsOne(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var pods []*v1.Pod
		for i := range rapid.IntRange(2, 8).Draw(r, "pods") {
			p := pod(fmt.Sprint(i), on(rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "node")),
				phase(rapid.SampledFrom([]v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodUnknown}).Draw(r, "phase")),
				restarted(rapid.Int32Range(0, 2).Draw(r, "restarts"), rapid.Int32Range(0, 1).Draw(r, "sidecar"), 0),
				readyFor(time.Duration(rapid.Int64Range(0, 100).Draw(r, "ready"))*time.Second),
				age(time.Duration(rapid.Int64Range(-5, 100).Draw(r, "age"))*time.Second))
			if rapid.Bool().Draw(r, "unready") {
				unready(p)
			}
			pods = append(pods, p)
		}
		onNode := map[string]int{"x": 2, "y": 1}
		less := func(list []*v1.Pod) func(i, j int) bool {
			return func(i, j int) bool { return lessValuable(list[i], list[j], onNode, now) }
		}
		other := slices.Clone(pods)
		slices.Reverse(other)
		sort.SliceStable(pods, less(pods))
		sort.SliceStable(other, less(other))
		if names(pods) != names(other) {
			r.Fatalf("%s or %s", names(pods), names(other))
		}
		for i := range pods {
			for j := i + 1; j < len(pods); j++ {
				if lessValuable(pods[j], pods[i], onNode, now) {
					r.Fatalf("%s is before %s, and they are sorted %s", pods[j].Name, pods[i].Name, names(pods))
				}
			}
		}
	})
}

// TestPlanReachesReplicas: carrying plans out one after the other ends at as
// many pods as are wanted, never with more changes than that takes.
func TestPlanReachesReplicas(t *testing.T) {
	for _, c := range []struct{ have, want, passes int }{
		{0, 0, 0}, {0, 3, 1}, {3, 3, 0}, {5, 3, 1}, {0, podcontrol.Burst + 1, 2}, {2*podcontrol.Burst + 1, 0, 3},
	} {
		var pods []*v1.Pod
		for i := range c.have {
			pods = append(pods, pod(fmt.Sprint(i)))
		}
		passes := 0
		for ; ; passes++ {
			plan := Make(&Set{Replicas: int32(c.want)}, pods, nil, now)
			if plan.Create == 0 && len(plan.Delete) == 0 {
				break
			}
			if plan.Create > podcontrol.Burst || len(plan.Delete) > podcontrol.Burst || plan.Create > 0 && len(plan.Delete) > 0 ||
				len(plan.Because) == 0 {
				t.Fatalf("%d to %d: creates %d and deletes %d because %v", c.have, c.want, plan.Create, len(plan.Delete), plan.Because)
			}
			pods = pods[:len(pods)-len(plan.Delete)]
			for i := range plan.Create {
				pods = append(pods, pod(fmt.Sprintf("new-%d-%d", passes, i)))
			}
		}
		if len(pods) != c.want || passes != c.passes {
			t.Errorf("%d to %d: %d pods after %d passes, want %d", c.have, c.want, len(pods), passes, c.passes)
		}
	}
}

// TestFullyLabeled: pods that lack a label of the template count, but not as
// fully labeled; a terminal pod counts nowhere.
func TestFullyLabeled(t *testing.T) {
	labelled := func(p *v1.Pod) { p.Labels = map[string]string{"a": "1", "b": "2"} }
	half := func(p *v1.Pod) { p.Labels = map[string]string{"a": "1"} }
	old := status{Replicas: 9, ReadyReplicas: 9, AvailableReplicas: 9, FullyLabeledReplicas: 9}
	got := Make(&Set{TemplateLabels: labels.Set{"a": "1", "b": "2"}, Status: old}, []*v1.Pod{pod("a", labelled), pod("b", half),
		pod("c", labelled, phase(v1.PodSucceeded)), pod("d", labelled, phase(v1.PodFailed), dying)}, nil, now).Status
	if got.Replicas != 2 || got.FullyLabeledReplicas != 1 || got.ReadyReplicas != 2 || *got.TerminatingReplicas != 0 {
		t.Errorf("status %+v", got)
	}
}

// TestFailureCondition: a failure is told with when it began; another one
// begins again; success removes it and nothing else.
func TestFailureCondition(t *testing.T) {
	other := appsv1.ReplicaSetCondition{Type: "Other", Status: v1.ConditionTrue}
	st := &status{Conditions: []appsv1.ReplicaSetCondition{other}}
	step := func(reason string, err error, at time.Time, want string) {
		t.Helper()
		outcome(st, reason, err, at)
		got := ""
		for _, c := range st.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				got += fmt.Sprintf("%s: %s since %s", c.Reason, c.Message, c.LastTransitionTime.Sub(now))
			}
		}
		if got != want || st.Conditions[0].Type != "Other" {
			t.Errorf("%q, want %q, of %+v", got, want, st.Conditions)
		}
	}
	step("FailedCreate", errors.New("quota"), now, "FailedCreate: quota since 0s")
	step("FailedCreate", errors.New("quota is 0"), now.Add(time.Minute), "FailedCreate: quota is 0 since 0s")
	step("FailedDelete", errors.New("no"), now.Add(2*time.Minute), "FailedDelete: no since 2m0s")
	step("", nil, now.Add(3*time.Minute), "")
	st.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure}}
	if outcome(st, "", nil, now); st.Conditions != nil {
		t.Error("no condition left must be nil, as the API stores it: anything else is written with each sync")
	}
}

// TestBothKinds: what a plan sees of either kind.
func TestBothKinds(t *testing.T) {
	e := controller.Env{Client: fake.NewSimpleClientset()}
	yes := true
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "s", Generation: 3,
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", UID: "d", Controller: &yes}}},
		Spec: appsv1.ReplicaSetSpec{MinReadySeconds: 5, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "1"}}}}
	o := fromReplicaSet(e, rs)
	if o.set.Replicas != 1 || o.set.MinReady != 5 || o.set.Generation != 3 || o.family != types.UID("d") || o.ref.Kind != "ReplicaSet" ||
		!o.selector.Matches(labels.Set{"a": "1"}) || o.selector.Matches(labels.Set{}) {
		t.Errorf("ReplicaSet: %+v", o)
	}
	rs.Spec.Replicas, rs.DeletionTimestamp = ptr.To[int32](0), &metav1.Time{}
	if o := fromReplicaSet(e, rs); o.set.Replicas != 0 || !o.set.Deleting {
		t.Errorf("ReplicaSet that ends: %+v", o.set)
	}
	rc := &v1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c"}, Spec: v1.ReplicationControllerSpec{
		Replicas: ptr.To[int32](4), Selector: map[string]string{"a": "1"}}}
	rc.Status.Conditions = []v1.ReplicationControllerCondition{{Type: "ReplicaFailure", Reason: "FailedCreate"}}
	o = fromReplicationController(e, rc)
	if o.set.Replicas != 4 || o.ref.Kind != "ReplicationController" || o.ref.APIVersion != "v1" || o.template == nil || o.family != "" ||
		o.set.Status.Conditions[0].Reason != "FailedCreate" {
		t.Errorf("ReplicationController: %+v", o)
	}
}
