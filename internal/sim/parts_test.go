package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/nodes/podgc"
)

// built is a simulation before its first moment.
func built(t *testing.T, text string) *simulation {
	t.Helper()
	sc, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newSimulation(sc)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.build(); err != nil {
		t.Fatal(err)
	}
	return w
}

// run lets virtual time pass.
func (w *simulation) run(t *testing.T, d time.Duration) {
	t.Helper()
	end := w.Now + d
	for {
		task, ok := w.Next(end)
		if !ok {
			break
		}
		task.Do()
	}
	w.Now = end
}

// TestWritesWaitForTheAPI: a write is committed after the API's latency, and
// while the API is down tried again, ever less often, until it is back.
func TestWritesWaitForTheAPI(t *testing.T) {
	w := built(t, three("duration: 10m"))
	var at []time.Duration
	commit := func() { at = append(at, w.Now) }
	w.api.do(writeLease, commit)
	w.run(t, time.Second)
	if !slices.Equal(at, []time.Duration{10 * time.Millisecond}) {
		t.Errorf("committed at %s, want after 10ms", at)
	}
	w.api.extra = 2 * time.Second
	w.api.do(writeLease, commit)
	w.run(t, 3*time.Second)
	if len(at) != 2 || at[1] != time.Second+2010*time.Millisecond {
		t.Errorf("with a slow API committed at %s", at)
	}
	w.api.extra, w.api.down = 0, 1
	w.api.do(writeBinding, commit)
	w.run(t, 5*time.Minute)
	if len(at) != 2 || w.api.total[writeBinding] != 0 {
		t.Errorf("committed at %s while the API was down", at)
	}
	w.api.down = 0
	back := w.Now
	w.run(t, 15*time.Second)
	if len(at) != 3 || at[2]-back > 12*time.Second+10*time.Millisecond { // ten seconds, a fifth more at most
		t.Fatalf("back at %s, committed at %s", back, at)
	}
	if w.api.total[writeLease] != 2 || w.api.total[writeBinding] != 1 {
		t.Errorf("counted %v", w.api.total)
	}
	if second := int(at[2] / time.Second); w.api.writes[writeBinding][second] != 1 {
		t.Errorf("the binding is not counted in second %d", second)
	}
}

// TestWatchesOfAbsentControllers: changes are seen after the watch's latency,
// not while controllers are away or their watch stands still.
func TestWatchesOfAbsentControllers(t *testing.T) {
	for _, c := range []struct {
		name          string
		down, stalled int
		seen          bool
	}{{"running", 0, 0, true}, {"away", 1, 0, false}, {"stalled", 0, 1, false}} {
		w := built(t, three("duration: 10m"))
		w.down, w.stalled = c.down, c.stalled
		var at time.Duration
		w.notify(func() { at = w.Now })
		w.run(t, time.Second)
		if (at > 0) != c.seen || c.seen && at != 10*time.Millisecond {
			t.Errorf("%s: seen at %s", c.name, at)
		}
	}
}

// TestPool: as many jobs as there are workers run at a time, in order; a job that
// ends twice frees one worker; a restart forgets the queue and what runs.
func TestPool(t *testing.T) {
	p := pool{size: 2}
	var began []int
	ends := map[int]func(){}
	for i := range 5 {
		p.add(func(done func()) { began = append(began, i); ends[i] = done })
	}
	if !slices.Equal(began, []int{0, 1}) {
		t.Fatalf("two workers began %v", began)
	}
	ends[1]()
	ends[1]()
	if !slices.Equal(began, []int{0, 1, 2}) || p.busy != 2 {
		t.Errorf("after one job ended, %v began and %d are busy", began, p.busy)
	}
	p.reset()
	ends[0]() // of the life before
	if p.busy != 0 || len(p.queue) != 0 || len(began) != 3 {
		t.Errorf("after a restart %d are busy, %d wait, %v began", p.busy, len(p.queue), began)
	}
	p.add(func(func()) { began = append(began, 9) })
	if began[len(began)-1] != 9 || p.busy != 1 {
		t.Errorf("after a restart nothing begins: %v", began)
	}
}

// TestTolerationsOfPods are those that admission adds: the defaults of the flags,
// or of the workload, where the pod says nothing of its own.
func TestTolerationsOfPods(t *testing.T) {
	set := defaults()
	set.notReadySeconds, set.unreachableSeconds = 17, 19
	five := int64(5)
	of := func(list []v1.Toleration) string {
		var out []string
		for _, t := range list {
			text := strings.TrimPrefix(t.Key, "node.kubernetes.io/")
			if t.TolerationSeconds != nil {
				text += fmt.Sprintf("=%d", *t.TolerationSeconds)
			}
			out = append(out, text)
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		name    string
		own     []v1.Toleration
		seconds *int64
		want    string
	}{
		{"nothing of its own", nil, nil, "not-ready=17 unreachable=19"},
		{"the workload's", nil, &five, "not-ready=5 unreachable=5"},
		{"its own for one", []v1.Toleration{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}, nil,
			"unreachable not-ready=17"},
		{"of another effect", []v1.Toleration{{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}}, nil,
			"not-ready not-ready=17 unreachable=19"},
		{"everything", []v1.Toleration{{Operator: v1.TolerationOpExists}}, nil, ""},
	} {
		if got := of(set.tolerations(c.own, c.seconds)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestWhenPodsAreEvicted: a pod goes when its shortest toleration of a taint runs
// out, never while it tolerates for ever, and the time counts from the taint on.
func TestWhenPodsAreEvicted(t *testing.T) {
	w := built(t, plain+"- at: 1m\n  heal: {}\n")
	p := w.pods[0]
	w.run(t, 10*time.Second)
	taint := func(key string, added time.Duration) v1.Taint {
		at := metav1.NewTime(w.Time().Add(added - w.Now))
		return v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute, TimeAdded: &at}
	}
	for _, c := range []struct {
		name   string
		taints []v1.Taint
		at     time.Duration
		ok     bool
	}{
		{"no taint", nil, 0, false},
		{"another effect", []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule}}, 0, false},
		{"unreachable", []v1.Taint{taint(v1.TaintNodeUnreachable, 10*time.Second)}, 40 * time.Second, true},
		{"tainted before", []v1.Taint{taint(v1.TaintNodeUnreachable, 4*time.Second)}, 34 * time.Second, true},
		{"not tolerated", []v1.Taint{taint("other", 10*time.Second)}, 10 * time.Second, true},
	} {
		node := p.node.obj.DeepCopy()
		node.Spec.Taints = c.taints
		p.node.obj = node
		w.eviction.stop()
		if at, ok := w.eviction.due(p); ok != c.ok || ok && at != c.at {
			t.Errorf("%s: due at %s, %v; want %s, %v", c.name, at, ok, c.at, c.ok)
		}
		if _, marked := w.eviction.marked[p]; marked != c.ok {
			t.Errorf("%s: remembered %v", c.name, marked)
		}
	}
	now := metav1.NewTime(w.Time())
	p.obj.DeletionTimestamp = &now
	if _, ok := w.eviction.due(p); ok {
		t.Error("a pod that is being deleted is evicted once more")
	}
	if why, _ := w.gc.judge(p); why != podgc.None {
		t.Errorf("a pod of a node that is there is collected: %v", why)
	}
	w.gc.missing[p.node] = w.Now
	if why, from := w.gc.judge(p); why == podgc.None || !from.After(w.Time()) {
		t.Errorf("a pod of a node that is gone: %v from %s on", why, from)
	}
}

// TestSettledCluster: at the beginning pods are even over zones and nodes, no node
// holds more than it has, and what fits nowhere waits.
func TestSettledCluster(t *testing.T) {
	w := built(t, `
cluster:
  cpu: '1'
  maxPods: 4
  zones: [{name: a, nodes: 3}, {name: b, nodes: 3, labels: {disk: ssd}}, {name: c, nodes: 3, taints: [{key: k, effect: NoSchedule}]}]
workloads:
- {name: log, kind: DaemonSet}
- {name: web, kind: Deployment, replicas: 12, cpu: 200m}
- {name: fast, kind: Deployment, replicas: 2, cpu: 300m, nodeSelector: {disk: ssd}}
- {name: guard, kind: Pods, replicas: 2, tolerations: [{key: k, operator: Exists}]}
- {name: huge, kind: StatefulSet, replicas: 2, cpu: '2'}
`)
	on := map[string]map[string]int{}
	for _, p := range w.pods {
		if p.node == nil {
			if p.set.name != "huge" {
				t.Errorf("a pod of %s waits", p.set.name)
			}
			continue
		}
		zone := p.node.obj.Labels[v1.LabelTopologyZone]
		if on[p.set.name] == nil {
			on[p.set.name] = map[string]int{}
		}
		on[p.set.name][zone]++
		if !p.running || !p.ready() {
			t.Errorf("%s is not running at the beginning", p.obj.Name)
		}
	}
	want := map[string]map[string]int{"log": {"a": 3, "b": 3}, "web": {"a": 6, "b": 6}, "fast": {"b": 2}}
	for name, zones := range want {
		if fmt.Sprint(on[name]) != fmt.Sprint(zones) {
			t.Errorf("%s runs on %v, want %v", name, on[name], zones)
		}
	}
	for _, n := range w.nodes {
		var cpu int64
		for _, p := range n.pods {
			cpu += p.obj.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
		if cpu > 1000 || len(n.pods) > 4 {
			t.Errorf("node %s holds %d pods with %dm CPU", n.obj.Name, len(n.pods), cpu)
		}
	}
	order := w.interleaved()
	for i := range order[:len(order)-1] {
		if a, b := order[i].obj, order[i+1].obj; a.Labels[v1.LabelTopologyZone] == b.Labels[v1.LabelTopologyZone] {
			t.Errorf("%s and %s are neighbours", a.Name, b.Name)
		}
	}
}

// TestNodesOfAZone have its labels and taints, racks in turn, and what each was
// given to allocate.
func TestNodesOfAZone(t *testing.T) {
	c := &Cluster{CPU: "4", Memory: "8Gi", MaxPods: 7}
	z := &zoneSpec{Name: "a", Region: "r", Nodes: 5, Racks: 2, Labels: map[string]string{"disk": "ssd"},
		Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}}
	var racks []string
	for k := range z.Nodes {
		n := c.node(z, k)
		racks = append(racks, n.Labels["rack"])
		if n.Name != fmt.Sprintf("a-%d", k+1) || n.Labels[v1.LabelHostname] != n.Name || n.Labels[v1.LabelTopologyRegion] != "r" ||
			n.Labels["disk"] != "ssd" || len(n.Spec.Taints) != 1 || n.Status.Allocatable.Cpu().Value() != 4 ||
			n.Status.Allocatable.Pods().Value() != 7 || n.Status.Allocatable.Memory().Value() != 8<<30 {
			t.Errorf("node %d: %+v", k, n)
		}
		n.Spec.Taints[0].Key = "changed"
	}
	if z.Taints[0].Key != "k" {
		t.Error("nodes share the taints of their zone")
	}
	if !slices.Equal(racks, []string{"a-r1", "a-r2", "a-r1", "a-r2", "a-r1"}) {
		t.Errorf("racks %v", racks)
	}
}

// TestBursts: equal happenings are one line with a count and the first names; a
// pause, another zone or another kind begins a new one.
func TestBursts(t *testing.T) {
	w := built(t, three("duration: 1h"))
	r := &w.notes
	r.entries = nil
	for i := range 5 {
		w.Now = time.Duration(i) * 10 * time.Second
		r.burst(w, "unknown", "a", fmt.Sprintf("n%d", i%4)) // n0 twice
	}
	r.burst(w, "unknown", "b", "m")
	r.burst(w, "back", "a", "n0")
	w.Now += burstGap
	r.burst(w, "unknown", "a", "n5") // just in time
	w.Now += burstGap + time.Second
	r.burst(w, "unknown", "a", "n6")
	var got []string
	for _, e := range r.entries {
		got = append(got, strings.TrimSpace(e.line()))
	}
	want := []string{
		"00:00:00.0  zone a: 5 nodes marked Unknown, 6 times in all, until 00:02:40.0 (n0, n1, n2, ...)",
		"00:00:40.0  zone b: 1 node marked Unknown (m)",
		"00:00:40.0  zone a: 1 node Ready again (n0)",
		"00:04:41.0  zone a: 1 node marked Unknown (n6)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestStates: how nodes and pods stand, from what the API holds and what is true
// on the host: the worst that holds.
func TestStates(t *testing.T) {
	w := built(t, plain+"- at: 1m\n  heal: {}\n")
	n := w.nodes[0]
	for _, c := range []struct {
		name   string
		change func(n *node, obj *v1.Node)
		want   nodeState
	}{
		{"healthy", func(*node, *v1.Node) {}, nodeReady},
		{"cordoned", func(_ *node, o *v1.Node) { o.Spec.Unschedulable = true }, nodeCordoned},
		{"silent", func(n *node, o *v1.Node) { n.silent, o.Spec.Unschedulable = 0, true }, nodeUnnoticed},
		{"not ready", func(n *node, o *v1.Node) { o.Status.Conditions = conditions(v1.ConditionFalse, w.Time(), nil) }, nodeNotReady},
		{"unknown", func(n *node, o *v1.Node) { o.Status.Conditions = conditions(v1.ConditionUnknown, w.Time(), nil) }, nodeUnknown},
		{"tainted", func(_ *node, o *v1.Node) {
			o.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}
			o.Status.Conditions = conditions(v1.ConditionUnknown, w.Time(), nil)
		}, nodeEvicting},
		{"tainted by others", func(_ *node, o *v1.Node) { o.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} },
			nodeReady},
		{"deleted", func(n *node, _ *v1.Node) { n.deleted = true }, nodeNowhere},
	} {
		one := *n
		one.obj = n.obj.DeepCopy()
		c.change(&one, one.obj)
		if got := w.nodeState(&one); got != c.want {
			t.Errorf("a node that is %s is in state %d, want %d", c.name, got, c.want)
		}
	}
	now := metav1.NewTime(w.Time())
	for _, c := range []struct {
		name   string
		change func(*pod)
		want   podState
	}{
		{"serving", func(*pod) {}, podServing},
		{"dead on its host", func(p *pod) { p.running = false }, podDead},
		{"not ready", func(p *pod) { p.setReady(v1.ConditionFalse, w.Time()) }, podNotReady},
		{"deleted", func(p *pod) { p.obj.DeletionTimestamp = &now }, podTerminating},
		{"on no node", func(p *pod) { p.node = nil }, podPending},
		{"gone", func(p *pod) { p.gone, p.obj.DeletionTimestamp = true, &now }, podNowhere},
		{"done", func(p *pod) { p.done = true }, podNowhere},
	} {
		one := *w.pods[0]
		one.obj = *w.pods[0].obj.DeepCopy()
		c.change(&one)
		if got := one.stands(); got != c.want {
			t.Errorf("a pod that is %s is in state %d, want %d", c.name, got, c.want)
		}
	}
}

// TestOwners: what keeps an imported pod, read off the pod alone.
func TestOwners(t *testing.T) {
	yes := true
	for _, c := range []struct{ kind, want string }{
		{"ReplicaSet", "owner Deployment o"}, {"StatefulSet", "owner StatefulSet o"}, {"DaemonSet", "owner DaemonSet o"},
		{"Job", "owner Deployment o"}, {"Rollout", "owner Deployment o"},
		{"Node", "own Pods p"}, {"", "own Pods p"}, // a mirror pod, and one that no one keeps
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "own"}}
		if c.kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "x", UID: "x"},
				{Kind: c.kind, Name: "o", UID: types.UID("owner"), Controller: &yes}}
		}
		if key, kind, name := ownerOf(p); key+" "+kind+" "+name != c.want {
			t.Errorf("a pod of %q: %s %s %s, want %s", c.kind, key, kind, name, c.want)
		}
	}
}

// TestImportedPods: pods that are over or on their way out are left behind, those
// of unknown nodes wait, and a node that is not Ready begins cut off.
func TestImportedPods(t *testing.T) {
	now := metav1.Now()
	pod := func(name, node string, phase v1.PodPhase) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "d", UID: types.UID(name)},
			Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c"}}}, Status: v1.PodStatus{Phase: phase}}
	}
	ending := pod("ending", "n1", v1.PodRunning)
	ending.DeletionTimestamp = &now
	node := func(name string, ready v1.ConditionStatus) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady,
			Status: ready}}}}
	}
	sc, err := ParseEvents([]byte("name: live"))
	if err != nil {
		t.Fatal(err)
	}
	live, err := sc.Import([]*v1.Node{node("n1", v1.ConditionTrue), node("n2", v1.ConditionUnknown)}, []*v1.Pod{
		pod("runs", "n1", v1.PodRunning), pod("starts", "n1", v1.PodPending), pod("lost", "n2", v1.PodRunning),
		pod("nowhere", "n9", v1.PodRunning),
		pod("unbound", "", v1.PodPending), pod("done", "n1", v1.PodSucceeded), pod("failed", "n1", v1.PodFailed), ending})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newSimulation(live)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.build(); err != nil {
		t.Fatal(err)
	}
	got := map[string]podState{}
	for _, p := range w.pods {
		got[p.obj.Name] = p.stands()
	}
	want := map[string]podState{"runs": podServing, "starts": podNotReady, "lost": podNotReady, "nowhere": podPending,
		"unbound": podPending}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("imported %v, want %v", got, want)
	}
	if w.byName["n1"].Cut != 0 || w.byName["n2"].Cut != 1 || w.nodeState(w.byName["n2"]) != nodeUnknown {
		t.Errorf("nodes begin as %+v and %+v", w.byName["n1"].Host, w.byName["n2"].Host)
	}
	if sc.live != nil {
		t.Error("the scenario itself was changed")
	}
}
