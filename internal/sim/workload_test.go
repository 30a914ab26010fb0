package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// cluster is a scenario of six nodes and one workload.
func cluster(workload, events string) string {
	text := "name: one\nduration: 30m\ncluster:\n  cpu: '2'\n  zones: [{name: a, nodes: 3, region: r}, {name: b, nodes: 3, region: r}]\n" +
		"workloads: [" + workload + "]\n"
	if events != "" {
		text += "events:\n" + events
	}
	return text
}

// What a kind does about a node that is gone: a Deployment makes up for its pod at
// once, a StatefulSet when the old one is known to be over, Pods never.
func TestKindsAfterANodeLoss(t *testing.T) {
	dead := eventAt(2, "kill: {names: [a-1]}")
	gone := dead + eventAt(10, "delete: {names: [a-1]}")
	for _, c := range []struct {
		workload, events string
		missing          bool // at the end
		latest           time.Duration
	}{
		{"{name: w, kind: Deployment, replicas: 6}", dead, false, 8 * time.Minute},
		{"{name: w, kind: Deployment, replicas: 6, tolerationSeconds: 0}", dead, false, 2 * time.Minute},
		{"{name: w, kind: StatefulSet, replicas: 6}", dead, true, 0},
		{"{name: w, kind: StatefulSet, replicas: 6}", gone, false, 10 * time.Minute},
		{"{name: w, kind: Pods, replicas: 6}", dead, true, 0},
		{"{name: w, kind: DaemonSet}", dead, true, 0},
	} {
		r := play(t, cluster(c.workload, c.events))
		s := &r.Summary
		if (s.Unrecovered > 0) != c.missing || !c.missing && (s.PodRecovery.Count == 0 || s.PodRecovery.Max.D() > c.latest) {
			t.Errorf("%s: %d pods missing at the end, the last replaced after %s, want within %s", c.workload, s.Unrecovered,
				s.PodRecovery.Max.D(), c.latest)
		}
	}
}

// A Job ends with as many successes as it asks for, though a node dies on the way.
func TestJobCompletesDespiteANodeLoss(t *testing.T) {
	for _, events := range []string{"", eventAt(1, "kill: {names: [a-1]}") + eventAt(2, "delete: {names: [a-1]}")} {
		r := play(t, cluster("{name: j, kind: Job, replicas: 6, completions: 12, runsFor: 2m}", events))
		s := &r.Summary
		if s.EndPods != (podCounts{}) {
			t.Errorf("pods left at the end: %+v", s.EndPods)
		}
		if created := s.Writes["pod creations"]; created < 6 || events == "" && created != 6 {
			t.Errorf("%d pods made beside the first six", created)
		}
	}
}

// Pods that do not fit wait; of those that wait the most important come first when
// room is made.
func TestWaitingPodsByPriority(t *testing.T) {
	r := play(t, `
name: full
duration: 20m
cluster:
  cpu: '1'
  zones: [{name: a, nodes: 2}, {name: b, nodes: 2}]
workloads:
- {name: low, kind: Deployment, replicas: 2, cpu: 600m, tolerationSeconds: 0}
- {name: high, kind: Deployment, replicas: 2, cpu: 600m, tolerationSeconds: 0, priority: 100}
events:
- at: 1m
  kill: {zone: a}
- at: 10m
  heal: {names: [a-1]}
`)
	p := r.Summary.Pending
	if len(p) != 1 || p["low"] == "" || !strings.Contains(p["low"], "Insufficient cpu") || r.Summary.EndPods.Pending != 1 {
		t.Errorf("waiting at the end: %v, %+v; want one of low", p, r.Summary.EndPods)
	}
}

// Selectors, taints and spread say where pods go.
func TestWherePodsGo(t *testing.T) {
	count := func(workload string) map[string]int {
		sc, err := Parse([]byte(strings.Replace(cluster(workload, ""), "{name: b, nodes: 3, region: r}",
			"{name: b, nodes: 3, region: r, labels: {disk: ssd}}, {name: c, nodes: 3, taints: [{key: gpu, effect: NoSchedule}]}", 1)))
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
		if _, err := w.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		zones := map[string]int{}
		for _, p := range w.pods {
			if p != nil && p.node != nil {
				zones[p.node.obj.Name[:1]]++
			}
		}
		return zones
	}
	for workload, want := range map[string]map[string]int{
		"{name: w, kind: Deployment, replicas: 4}":                                                    {"a": 2, "b": 2, "c": 0},
		"{name: w, kind: Deployment, replicas: 4, nodeSelector: {disk: ssd}}":                         {"a": 0, "b": 4, "c": 0},
		"{name: w, kind: Deployment, replicas: 6, tolerations: [{key: gpu, operator: Exists}]}":       {"a": 2, "b": 2, "c": 2},
		"{name: w, kind: DaemonSet}":                                                                  {"a": 3, "b": 3, "c": 0},
		"{name: w, kind: DaemonSet, tolerations: [{operator: Exists}]}":                               {"a": 3, "b": 3, "c": 3},
		"{name: w, kind: Deployment, replicas: 6, spreadOver: topology.kubernetes.io/zone, count: 1}": {"a": 3, "b": 3, "c": 0},
	} {
		got := count(workload)
		for zone, n := range want {
			if got[zone] != n {
				t.Errorf("%s: %v, want %v", workload, got, want)
				break
			}
		}
	}
}

// Pods of a deleted node are removed by the garbage collector after its quarantine,
// and not those of a node that is only dead.
func TestPodsOfDeletedNodes(t *testing.T) {
	dead := play(t, cluster("{name: w, kind: StatefulSet, replicas: 6}", eventAt(2, "kill: {names: [a-1]}")))
	if n := dead.Summary.Collected; n != 0 {
		t.Errorf("%d pods of a dead node removed", n)
	}
	gone := play(t, cluster("{name: w, kind: StatefulSet, replicas: 6}", eventAt(2, "delete: {names: [a-1]}")))
	if s := &gone.Summary; s.Collected != 1 || s.Nodes != 6 || s.EndNodes.Ready != 5 {
		t.Errorf("%d pods removed, %d nodes ready", s.Collected, s.EndNodes.Ready)
	}
	for _, e := range gone.Timeline {
		if e.What == bursts["collected"].verb && (e.At.D() < 2*time.Minute+40*time.Second || e.At.D() > 2*time.Minute+45*time.Second) {
			t.Errorf("removed at %s, want 40 s after the node", e.At.D())
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{count(1, "node"), "1 node"}, {count(0, "pod"), "0 pods"}, {count(12345678, "pod"), "12,345,678 pods"},
		{thousands(-1234), "-1,234"},
		{stamp(duration(5*time.Minute + 50*time.Second + 240*time.Millisecond)), "00:05:50.2"}, {stamp(duration(25 * time.Hour)),
			"25:00:00.0"},
		{short(duration(1234 * time.Millisecond)), "1.2s"}, {short(duration(10*time.Minute + 400*time.Millisecond)), "10m"},
		{short(duration(3 * time.Hour)), "3h"}, {short(duration(150*time.Minute + 20*time.Second)), "2h30m"},
		{podTime(0), "none"}, {podTime(duration(90 * time.Second)), "1.5 pod minutes"}, {podTime(duration(36 * time.Hour)),
			"36.0 pod hours"},
		{rate(0), "no node may be tainted NoExecute"}, {rate(0.1), "one node each 10s may be tainted NoExecute"},
		{rate(2), "2 nodes a second may be tainted NoExecute"}, {column(0), "as is"}, {column(1), "compared"}, {column(2), "compared 2"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// Runs beside each other have a column each, and why pods wait is said of each.
func TestTextOfTwoRuns(t *testing.T) {
	full := cluster("{name: w, kind: Deployment, replicas: 20, cpu: 900m}", eventAt(2, "kill: {zone: a, for: 3m}"))
	sc, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	quick, err := sc.With("--node-monitor-grace-period=20s")
	if err != nil {
		t.Fatal(err)
	}
	runs := runAll(t, sc, quick)
	var out bytes.Buffer
	if err := Text(&out, runs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"default flags", "node-monitor-grace-period=20s", "as is", "compared", "as is: w: ", "compared: w: ",
		"Insufficient cpu"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, out.String())
		}
	}
}

// A change of flags is checked before anything runs, and leaves the scenario alone.
func TestFlagChanges(t *testing.T) {
	sc, err := Parse([]byte(cluster("{name: w, kind: DaemonSet}", "")))
	if err != nil {
		t.Fatal(err)
	}
	for change, want := range map[string]string{
		"node-monitor-grace-period=0s": "must be more than 0", "node-eviction-rate=fast": "invalid syntax", "nodes=3": "allowed are",
		"node-lease-duration-seconds=0": "at least 1", "unhealthy-zone-threshold=2": "at most 1",
		"default-not-ready-toleration-seconds=x": "invalid syntax",
		"large-cluster-size-threshold=many":      "invalid syntax", "just a word": "name=value",
	} {
		if _, err := sc.With(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", change, err, want)
		}
	}
	other, err := sc.With("node-eviction-rate=1, large-cluster-size-threshold=3, node-startup-grace-period=2m")
	if err != nil {
		t.Fatal(err)
	}
	set, err := other.settings()
	if err != nil || set.health.EvictionRate != 1 || set.health.LargeZone != 3 || set.health.StartupGrace != 2*time.Minute {
		t.Errorf("%+v, %v", set.health, err)
	}
	if len(sc.Flags) != 0 {
		t.Errorf("the scenario itself has flags %v now", sc.Flags)
	}
}
