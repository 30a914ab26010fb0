package admit

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/resource"
)

func list(text string) v1.ResourceList {
	out := v1.ResourceList{}
	for _, f := range strings.Fields(text) {
		name, q, _ := strings.Cut(f, "=")
		out[v1.ResourceName(name)] = apiresource.MustParse(q)
	}
	return out
}

func asks(name, requests string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		NodeName: "n1", Containers: []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Requests: list(requests)}}},
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func guaranteed(p *v1.Pod) {
	p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
}

func important(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

func theNode() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}},
		Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}},
		Status:     v1.NodeStatus{Allocatable: list("cpu=2 memory=1Gi pods=3 example.com/gpu=1")},
	}
}

func TestRefusals(t *testing.T) {
	port := func(n int32) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: n, Protocol: v1.ProtocolTCP}}
		}
	}
	others := []*v1.Pod{asks("o1", "cpu=1500m memory=100Mi", port(80))}
	strict := v1.SupplementalGroupsPolicyStrict
	for _, c := range []struct {
		pod  *v1.Pod
		want string
	}{
		{asks("fits", "cpu=500m"), ""},
		{asks("cpu", "cpu=501m"), "OutOfcpu: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"},
		{asks("mem", "memory=1Gi"),
			"OutOfmemory: Node didn't have enough resource: memory, requested: 1073741824, used: 104857600, capacity: 1073741824"},
		{asks("gpu", "example.com/gpu=2"),
			"OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1"},
		{asks("unknown", "example.com/other=2"), ""},
		{asks("selector", "", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }),
			"NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{asks("name", "", func(p *v1.Pod) { p.Spec.NodeName = "n2" }),
			"NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"},
		{asks("port", "", port(80)), "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{asks("other port", "", port(81)), ""},
		{asks("os", "", func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }),
			"PodOSNotSupported: Failed to admit pod as the OS field \"windows\" doesn't match node OS"},
		{asks("label", "", func(p *v1.Pod) { p.Labels = map[string]string{v1.LabelOSStable: "windows"} }),
			"PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{asks("groups", "", func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
		}), "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		got := ""
		if r := Fit(c.pod, theNode(), others); r != nil {
			got = r.Reason + ": " + r.Message
		}
		if got != c.want {
			t.Errorf("%s: refused with %q, want %q", c.pod.Name, got, c.want)
		}
	}
	full := append(others, asks("o2", ""), asks("o3", ""))
	if r := Fit(asks("one too many", ""), theNode(), full); r == nil || r.Reason != "OutOfpods" || !strings.Contains(r.Message,
		"requested: 1, used: 3, capacity: 3") {
		t.Errorf("a full node answers %+v", r)
	}
	n := theNode()
	n.Spec.Taints[0].Effect = v1.TaintEffectNoExecute
	if r := Fit(asks("tainted", ""), n, nil); r == nil || r.Reason != "TaintToleration" {
		t.Errorf("a NoExecute taint answers %+v", r)
	}
	static := asks("static", "", func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} })
	if r := Fit(static, n, nil); r != nil {
		t.Errorf("a static pod is refused for a taint: %+v", r)
	}
}

// TestVictims checks the choice on random nodes: it frees enough, only of less
// important pods, and takes from a class only what lower classes cannot give.
func TestVictims(t *testing.T) {
	chosen := 0
	for seed := range int64(500) {
		rnd := rand.New(rand.NewSource(seed))
		n := theNode()
		n.Status.Allocatable = list("cpu=1 memory=1Gi pods=100")
		var running []*v1.Pod
		for i := range 1 + rnd.Intn(8) {
			change := []func(*v1.Pod){important(int32(rnd.Intn(2)) * 2000000000)}
			requests := fmt.Sprintf("cpu=%dm memory=%dMi", 10+rnd.Intn(300), 10+rnd.Intn(300))
			switch rnd.Intn(3) {
			case 0:
				change = append(change, guaranteed)
			case 1:
				requests = ""
			}
			running = append(running, asks(fmt.Sprint("p", i), requests, change...))
		}
		p := asks("critical", fmt.Sprintf("cpu=%dm memory=%dMi", rnd.Intn(1000), rnd.Intn(1000)), important(2000001000))
		refusals := Refusals(p, n, running)
		if !MayPreempt(p, refusals) {
			continue
		}
		without := func(gone func(*v1.Pod) bool) []refusal {
			return Refusals(p, n, slices.DeleteFunc(slices.Clone(running), gone))
		}
		got, err := Victims(p, refusals, running)
		possible := len(without(func(o *v1.Pod) bool { return lessImportant(o, p) })) == 0
		if (err == nil) != possible {
			t.Fatalf("seed %d: err %v, but giving everything would do: %v", seed, err, possible)
		}
		if err != nil {
			continue
		}
		chosen++
		if left := without(func(o *v1.Pod) bool { return slices.Contains(got, o) }); len(left) > 0 {
			t.Fatalf("seed %d: after %d victims still %v", seed, len(got), left)
		}
		for _, v := range got {
			if !lessImportant(v, p) {
				t.Fatalf("seed %d: %s went for a less important pod", seed, v.Name)
			}
			if resource.QOS(v) == v1.PodQOSGuaranteed &&
				len(without(func(o *v1.Pod) bool { return lessImportant(o, p) && resource.QOS(o) != v1.PodQOSGuaranteed })) == 0 {
				t.Fatalf("seed %d: a guaranteed pod went although others would do", seed)
			}
		}
	}
	if chosen < 50 {
		t.Fatalf("only %d of the histories had victims", chosen)
	}
}

func TestMayPreempt(t *testing.T) {
	n := theNode()
	big := asks("big", "cpu=3")
	if MayPreempt(big, Refusals(big, n, nil)) {
		t.Error("an ordinary pod may preempt")
	}
	big.Spec.Priority = ptr.To(int32(2000000000))
	if !container.Critical(big) || !MayPreempt(big, Refusals(big, n, nil)) {
		t.Error("a critical pod may not preempt")
	}
	big.Spec.NodeSelector = map[string]string{"zone": "b"}
	if MayPreempt(big, Refusals(big, n, nil)) {
		t.Error("a pod preempts on a node that is wrong for it")
	}
	if _, err := Victims(big, []refusal{{Resource: v1.ResourceCPU, Missing: 100}}, nil); err == nil || !strings.Contains(err.Error(),
		"(res: cpu, q: 100)") {
		t.Errorf("nobody to preempt: %v", err)
	}
}

// TestResizeOrder: room goes to who is first in the order, no matter who asks first.
func TestResizeOrder(t *testing.T) {
	n := theNode()
	has := func(name string) *v1.Pod { return asks(name, "cpu=500m memory=10Mi") }
	wants := func(name, requests string, since int, change ...func(*v1.Pod)) Want {
		return Want{Has: has(name), Wants: asks(name, requests, change...), Since: since}
	}
	admitted := []*v1.Pod{has("a"), has("b"), has("c")} // 500m of cpu are free
	grow := "cpu=1 memory=10Mi"
	for _, c := range []struct {
		what  string
		wants []Want
		first string
	}{
		{"who waits longer", []Want{wants("a", grow, 2), wants("b", grow, 1)}, "b"},
		{"Guaranteed", []Want{wants("a", grow, 1), wants("b", grow, 2, guaranteed)}, "b"},
		{"priority", []Want{wants("a", grow, 1, guaranteed), wants("b", grow, 2, important(5))}, "b"},
		{"what does not grow", []Want{wants("a", grow, 1, important(5)), wants("b", "cpu=400m memory=10Mi", 2)}, "b"},
	} {
		if r := Resize(types.UID(c.first), c.wants, n, admitted); r != nil {
			t.Errorf("%s comes first, but is refused: %+v", c.what, r)
		}
	}
	two := []Want{wants("a", grow, 2), wants("b", grow, 1)}
	if r := Resize("a", two, n, admitted); r == nil || r.Reason != "OutOfcpu" {
		t.Errorf("room that is another's was given away: %+v", r)
	}
	// What would not fit anyway holds no one up.
	two[1].Wants = asks("b", "cpu=10")
	if r := Resize("a", two, n, admitted); r != nil {
		t.Errorf("a hopeless wish holds up another: %+v", r)
	}
	// What becomes smaller makes room for who comes after it.
	three := []Want{wants("a", "cpu=1500m memory=10Mi", 1), wants("b", "cpu=0 memory=10Mi", 2)}
	if r := Resize("a", three, n, admitted); r != nil {
		t.Errorf("room that is about to come does not count: %+v", r)
	}
}
