package sim

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const small = `
name: small
duration: 30m
cluster:
  zones:
  - {name: a, nodes: 20}
  - {name: b, nodes: 20}
  - {name: c, nodes: 20}
workloads:
- {name: web, kind: Deployment, replicas: 200}
- {name: db, kind: StatefulSet, replicas: 20}
- {name: log, kind: DaemonSet}
- {name: batch, kind: Job, replicas: 10, completions: 40, runsFor: 3m}
`

func play(t *testing.T, text string) *Result {
	t.Helper()
	sc, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), sc)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func asJSON(t *testing.T, r *Result) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSameSeedSameRun(t *testing.T) {
	text := small + "events:\n- at: 2m\n  flap: {zone: b, down: 70s, up: 30s, for: 10m}\n" +
		"- at: 5m\n  kill: {rack: '', zone: c, percent: 30, for: 5m, stagger: 30s}\n"
	first, second := asJSON(t, play(t, text)), asJSON(t, play(t, text))
	if first != second {
		t.Error("two runs of one seed differ")
	}
	if other := asJSON(t, play(t, "seed: 2\n"+text)); other == first {
		t.Error("another seed gives the same run: nothing is random")
	}
}

// TestAnyFaultsThenHealing plays random faults and then heals all: whatever
// happened, no rule is broken on the way and in the end nothing is missing.
func TestAnyFaultsThenHealing(t *testing.T) {
	faults := []string{
		"kill: {zone: %s, percent: %d, stagger: 40s}", "cut: {zone: %s, percent: %d}", "pause: {zone: %s, percent: %d}",
		"flap: {zone: %s, percent: %d, down: 1m, up: 30s, for: 6m}", "notReady: {zone: %s, percent: %d}",
		"slow: {zone: %s, percent: %d, every: 45s}",
	}
	others := []string{"restartControllers: {for: 30s}", "api: {down: true, for: 90s}", "api: {latency: 2s, for: 2m}",
		"stallWatch: {for: 90s}"}
	for seed := range 40 {
		var b strings.Builder
		fmt.Fprintf(&b, "seed: %d\n%sevents:\n", seed+1, small)
		for i := range 3 {
			n := seed*7 + i*3
			fmt.Fprintf(&b, "- at: %dm\n  "+faults[n%len(faults)]+"\n", 1+i*2, string("abc"[n%3]), 20+n*13%81)
		}
		fmt.Fprintf(&b, "- at: %dm\n  %s\n- at: 14m\n  heal: {}\n", 2+seed%5, others[seed%len(others)])
		r := play(t, b.String())
		s := &r.Summary
		if s.EndNodes.Ready != 60 || s.Unrecovered+s.EndPods.Pending+s.EndPods.Terminating+s.EndPods.Dead+s.EndPods.NotReady != 0 {
			t.Errorf("16 minutes after healing: nodes %+v, pods %+v\n%s", s.EndNodes, s.EndPods, b.String())
		}
		if s.Detection.Max.D() > 50*time.Second+r.slack() {
			t.Errorf("a silent node was marked after %s\n%s", s.Detection.Max.D(), b.String())
		}
		// Three zones, one token each at the start and one each ten seconds.
		if most := 3 * (1 + int(r.Duration.D().Seconds())/10); s.Tainting.Count > most {
			t.Errorf("%d nodes tainted, the rate allows %d\n%s", s.Tainting.Count, most, b.String())
		}
	}
}

// slack is what a scenario's own faults may add to the grace period.
func (r *Result) slack() time.Duration {
	slack := 200 * time.Millisecond
	for _, e := range r.Timeline {
		if e.Kind == "event" && (strings.Contains(e.What, "API") || strings.Contains(e.What, "controllers")) {
			slack = 3 * time.Minute
		}
	}
	return slack
}

func TestNothingIsDeletedBeforeItsTime(t *testing.T) {
	r := play(t, small+"events:\n- at: 2m\n  kill: {names: [a-1]}\n")
	var tainted, deleted time.Duration
	for _, e := range r.Timeline {
		switch e.What {
		case bursts["tainted"].verb:
			tainted = e.At.D()
		case bursts["evicted"].verb:
			deleted = e.At.D()
		}
	}
	// timeAdded is kept in whole seconds, so up to one may be missing.
	if gap := deleted - tainted; gap < 299*time.Second || gap > 301*time.Second {
		t.Errorf("tainted at %s, pods deleted at %s: want 300 s between", tainted, deleted)
	}
	early := play(t, strings.ReplaceAll(small, "replicas: 200",
		"replicas: 200, tolerationSeconds: 10")+"events:\n- at: 2m\n  kill: {names: [a-1]}\n")
	if a, b := early.Summary.PodRecovery.P50, r.Summary.PodRecovery.P50; a.D() > 90*time.Second || b.D() < 5*time.Minute {
		t.Errorf("pods recovered after %s with a toleration of 10 s, after %s with 300 s", a.D(), b.D())
	}
}

func TestWhatNodeLossMeansToKinds(t *testing.T) {
	r := play(t, small+"events:\n- at: 2m\n  kill: {names: [a-1, b-1, c-1]}\n")
	s := &r.Summary
	if s.EndPods.Terminating == 0 {
		t.Error("no pod is left Terminating on nodes that are gone for good")
	}
	// The DaemonSet's pods stay; StatefulSet ordinals wait for theirs to end.
	if s.Unrecovered < 3 {
		t.Errorf("%d pods missing: the DaemonSet's three cannot be made up for", s.Unrecovered)
	}
	gone := play(t, small+"events:\n- at: 2m\n  kill: {names: [a-1, b-1, c-1]}\n- at: 4m\n  delete: {names: [a-1, b-1, c-1]}\n")
	if n := gone.Summary.EndPods.Terminating; n != 0 {
		t.Errorf("%d pods terminate for ever though their Nodes were deleted", n)
	}
	if gone.Summary.Collected == 0 {
		t.Error("no pod of a deleted node was removed")
	}
	taint := play(t, small+"events:\n- at: 2m\n  kill: {names: [a-1, b-1, c-1]}\n- at: 4m\n  outOfService: {names: [a-1, b-1, c-1]}\n")
	if n := taint.Summary.EndPods.Terminating; n != 0 {
		t.Errorf("%d pods terminate for ever though their nodes are out of service", n)
	}
}

func TestPodsThatFitNowhereSayWhy(t *testing.T) {
	r := play(t, "name: full\nduration: 5m\ncluster:\n  cpu: '1'\n  zones: [{name: a, nodes: 3}]\n"+
		"workloads: [{name: web, kind: Deployment, replicas: 4, cpu: 600m}]\n")
	if r.Summary.EndPods.Pending != 1 || !strings.Contains(r.Summary.Pending["web"], "3 Insufficient cpu") {
		t.Errorf("pending %d, because %q", r.Summary.EndPods.Pending, r.Summary.Pending)
	}
}

func TestScenarioErrorsNameFieldAndWhatIsAllowed(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"name: x\ncluster: {zones: [{name: a, nods: 3}]}",
			"cluster.zones[0].nods is not a field: allowed are labels, name, nodes, racks, region, taints"},
		{"name: x\ncluster: {zones: []}", "cluster.zones is empty"},
		{"name: x\ncluster: {zones: [{name: a, nodes: many}]}", "allowed is int"},
		{"duration: 5\ncluster: {zones: [{name: a, nodes: 3}]}", "write it as text with a unit"},
		{"flags: {node-monitor-period: 5s}\ncluster: {zones: [{name: a, nodes: 3}]}",
			"\"node-monitor-period\" is not one that the simulation knows; allowed are default-not-ready"},
		{"flags: {unhealthy-zone-threshold: 2}\ncluster: {zones: [{name: a, nodes: 3}]}", "must be more than 0 and at most 1"},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nworkloads: [{name: w, kind: Pod, replicas: 1}]",
			"workloads[0]: kind is \"Pod\": allowed are Deployment"},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nevents: [{at: 1m, kill: {zone: a}, heal: {}}]",
			"events[0]: has 2 actions (kill, heal): exactly one of"},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nevents: [{at: 2h, kill: {zone: a}}]", "after the end of the run"},
		{"cluster: {zones: [{name: a, nodes: 3}, {name: a, nodes: 1}]}", "is there twice"},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nworkloads: [{name: d, kind: DaemonSet, replicas: 2}]",
			"a DaemonSet has a pod on every node that fits"},
		{"cluster: {cpu: lots, zones: [{name: a, nodes: 3}]}", "cluster.cpu \"lots\""},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nevents: [{at: 1m, api: {for: 1m}}]", "either down or a latency"},
		{"cluster: {zones: [{name: a, nodes: 3}]}\nevents: [{at: 1m, slow: {zone: a}}]", "slow.every is missing"},
		{"name: x\nname: y\ncluster: {zones: [{name: a, nodes: 3}]}", "already set"},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q\ngives %v\nwant %q in it", c.text, err, c.want)
		}
	}
	sc, err := Parse([]byte("cluster: {zones: [{name: a, nodes: 3}]}\nevents: [{at: 1m, kill: {zone: q}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), sc); err == nil || !strings.Contains(err.Error(), "events[0]: no node fits zone q") {
		t.Errorf("an event without nodes gives %v", err)
	}
}

func TestCompareAndPlot(t *testing.T) {
	sc, err := Parse([]byte(small + "events:\n- at: 2m\n  kill: {zone: b, count: 5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	quick, err := sc.With("node-monitor-grace-period=20s, default-unreachable-toleration-seconds=30")
	if err != nil {
		t.Fatal(err)
	}
	runs := runAll(t, sc, quick)
	if a, b := runs[0].Summary.Detection.Max, runs[1].Summary.Detection.Max; a.D() < 40*time.Second || b.D() > 21*time.Second {
		t.Errorf("detected after %s with the default grace period, after %s with 20 s", a.D(), b.D())
	}
	if _, err := sc.With("node-monitor-grace-period"); err == nil {
		t.Error("a change without a value is accepted")
	}
	d := xml.NewDecoder(bytes.NewReader(SVG(runs)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
	}
}

func TestImportLiveCluster(t *testing.T) {
	node := func(name, zone string, ready v1.ConditionStatus) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110")},
				Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
	}
	yes := true
	pod := func(name, owner, kind, node string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name),
			Labels: map[string]string{"app": owner}},
			Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i"}}, Tolerations: []v1.Toleration{
				{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
					TolerationSeconds: new(int64)}}},
			Status: v1.PodStatus{Phase: v1.PodRunning}}
		if kind == "DaemonSet" {
			p.Spec.Tolerations[0].TolerationSeconds = nil
		}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID(owner), Controller: &yes}}
		}
		return p
	}
	sc, err := ParseEvents([]byte("name: ours\nduration: 20m\nevents:\n- at: 1m\n  kill: {names: [n1]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	sc, err = sc.Import([]*v1.Node{node("n1", "a", v1.ConditionTrue), node("n2", "b", v1.ConditionTrue),
		node("n3", "b", v1.ConditionFalse)},
		[]*v1.Pod{pod("web-1", "web-abc", "ReplicaSet", "n1"), pod("web-2", "web-abc", "ReplicaSet", "n2"),
			pod("db-0", "db", "StatefulSet", "n1"),
			pod("log-1", "log", "DaemonSet", "n1"), pod("log-2", "log", "DaemonSet", "n2"), pod("lonely", "", "", "n1")})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), sc)
	if err != nil {
		t.Fatal(err)
	}
	s := &r.Summary
	if s.Nodes != 3 || s.Pods != 6 || s.Detection.Count != 2 || s.EndNodes.Ready != 1 {
		t.Errorf("%+v", s)
	}
	// web-1 moves; db-0 waits for its node; log-1 stays; lonely is lost.
	if s.Evictions != 3 || s.PodRecovery.Count != 1 || s.EndPods.Serving != 3 {
		t.Errorf("evictions %d, recovered %d, pods %+v", s.Evictions, s.PodRecovery.Count, s.EndPods)
	}
	if _, err := ParseEvents([]byte(small)); err == nil {
		t.Error("a scenario with a cluster of its own is accepted beside a live one")
	}
}

// runAll runs scenarios one after the other.
func runAll(t *testing.T, scenarios ...*Scenario) (runs []*Result) {
	t.Helper()
	for _, s := range scenarios {
		r, err := Run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	return runs
}
