package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// three is a scenario of three nodes, with more lines after it.
func three(more string) string { return "cluster: {zones: [{name: a, nodes: 3, racks: 1}]}\n" + more }

// TestEventsOfAScenario: each kind of event has one that is accepted, and each
// way to write it wrong is refused by the event's number, the field and what is
// allowed.
func TestEventsOfAScenario(t *testing.T) {
	tried := map[string]bool{}
	for _, c := range []struct {
		action, good string
		bad          map[string]string
	}{
		{"kill", "{zone: a}", map[string]string{
			"{zone: a, count: -1}":    "count -1, percent 0",
			"{zone: a, percent: 101}": "percent 101: must be at least 0, and percent at most 100",
			"{zone: a, percent: -5}":  "percent -5", "{zone: a, for: -1m}": `duration "-1m": write a number that is not negative`,
			"{zone: a, fro: 1m}": "events[0].kill.fro is not a field",
		}},
		{"cut", "{rack: a-r1, for: 2m}", map[string]string{"{zone: a, for: 5}": "duration 5: write it as text with a unit"}},
		{"pause", "{names: [a-1]}", map[string]string{"{names: a-1}": "names is a string: allowed is []string"}},
		{"notReady", "{zone: a, count: 2, stagger: 20s}", map[string]string{"{zone: a, count: two}": "count is a string: allowed is int"}},
		{"slow", "{zone: a, every: 45s}", map[string]string{"{zone: a}": "slow.every is missing"}},
		{"flap", "{zone: a, down: 1m, up: 30s, for: 5m}", map[string]string{
			"{zone: a, down: 1m}": "flap.down and flap.up must both be set",
			"{zone: a, up: 1m}":   "flap.down and flap.up must both be set"}},
		{"heal", "{}", map[string]string{"{percent: 200}": "percent 200"}},
		{"delete", "{names: [a-1]}", map[string]string{"{percent: 200}": "percent 200"}},
		{"outOfService", "{names: [a-1]}", map[string]string{"{percent: 200}": "percent 200"}},
		{"upgrade", "{zone: a, batch: 1}", map[string]string{"{zone: a}": "upgrade.batch is 0: must be at least 1"}},
		{"restartControllers", "{for: 30s}", map[string]string{"{}": "restartControllers.for is missing"}},
		{"stallWatch", "{for: 30s}", map[string]string{"{}": "stallWatch.for is missing"}},
		{"api", "{latency: 1s, for: 2m}", map[string]string{"{latency: 1s}": "api.for is missing", "{for: 1m}": "either down or a latency",
			"{down: true, latency: 1s, for: 1m}": "either down or a latency"}},
	} {
		tried[c.action] = true
		event := func(value string) string {
			return three(fmt.Sprintf("duration: 20m\nevents:\n- {at: 1m, %s: %s}\n", c.action, value))
		}
		if r := play(t, event(c.good)); !slices.ContainsFunc(r.Timeline, func(e *entry) bool { return e.Kind == "event" }) {
			t.Errorf("%s: %s does not show in the timeline", c.action, c.good)
		}
		for value, want := range c.bad {
			// What has the wrong type is named by its field alone.
			_, err := Parse([]byte(event(value)))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "scenario: ") {
				t.Errorf("%s: %s gives %v, want %q", c.action, value, err, want)
			} else if typed := strings.Contains(want, "duration") || strings.Contains(want, "allowed is"); !typed &&
				!strings.Contains(err.Error(), "events[0]") {
				t.Errorf("%s: %s does not say which event: %v", c.action, value, err)
			}
		}
	}
	for i := range reflect.TypeFor[clusterEvent]().NumField() {
		f := reflect.TypeFor[clusterEvent]().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Pointer && !tried[name] {
			t.Errorf("no case plays the event %s", name)
		}
	}
}

// TestFieldsOfAScenario: values of clusters and workloads that make no sense are
// refused by the field that has them.
func TestFieldsOfAScenario(t *testing.T) {
	workload := func(text string) string {
		return three("workloads: [{name: w, kind: Deployment, replicas: 1}, {" + text + "}]")
	}
	for _, c := range []struct{ text, want string }{
		{"cluster: {zones: [{name: a, nodes: 3}, {nodes: 1}]}", "cluster.zones[1].name is empty"},
		{"cluster: {zones: [{name: a, nodes: 0}]}", "cluster.zones[0].nodes is 0: must be at least 1"},
		{"cluster: {zones: [{name: a, nodes: 3, racks: 4}]}", "cluster.zones[0].racks is 4: must be from 0 to its 3 nodes"},
		{"cluster: {zones: [{name: a, nodes: 3, racks: -1}]}", "cluster.zones[0].racks is -1"},
		{"cluster: {memory: 4X, zones: [{name: a, nodes: 3}]}", `cluster.memory "4X"`},
		{workload("kind: Job, replicas: 1"), "workloads[1]: name is empty"},
		{workload("name: v, kind: Deployment"), "workloads[1]: replicas is 0: must be at least 1"},
		{workload("name: v, kind: Deployment, replicas: 1, count: -2"), "workloads[1]: count is -2: must be at least 1"},
		{workload("name: v, kind: Deployment, replicas: 1, runsFor: 1m"), "workloads[1]: runsFor and completions are for Jobs only"},
		{workload("name: v, kind: StatefulSet, replicas: 1, completions: 2"), "runsFor and completions are for Jobs only"},
		{workload("name: v, kind: Deployment, replicas: 1, maxUnavailable: -1"), "maxUnavailable is -1: must not be negative"},
		{workload("name: v, kind: Deployment, replicas: 1, cpu: much"), `workloads[1]: cpu "much"`},
		{workload("name: v, kind: Deployment, replicas: 1, memory: much"), `workloads[1]: memory "much"`},
		{workload("name: v, kind: Cron, replicas: 1"), "allowed are Deployment, StatefulSet, DaemonSet, Job, Pods"},
		{workload("name: v, kind: Deployment, replicas: 1, image: i"), "workloads[1].image is not a field"},
		{three("flags: {node-monitor-grace-period: soon}"), "node-monitor-grace-period=soon"},
		{three("seed: -1"), "seed"},
		{three("events: [{at: 1m}]"), "events[0]: has 0 actions (): exactly one of kill, cut"},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(),
			"scenario: ") {
			t.Errorf("%s\ngives %v, want %q", c.text, err, c.want)
		}
	}
	for _, text := range []string{"workloads: [{name: w, kind: Job, replicas: 1}]", "cluster: {zones: [{name: a, nodes: 1}]}"} {
		if _, err := ParseEvents([]byte(text)); err == nil || !strings.Contains(err.Error(), "both are taken from the live cluster") {
			t.Errorf("beside a live cluster %s gives %v", text, err)
		}
	}
	if _, err := ParseEvents([]byte("events: [{at: 2h, heal: {}}]")); err == nil || !strings.Contains(err.Error(),
		"after the end of the run, 1h") {
		t.Errorf("an event of a live cluster after the end: %v", err)
	}
}

// TestDefaultsOfAScenario: what is left out has the defaults that docs/simulate.md
// names, and what is given stays.
func TestDefaultsOfAScenario(t *testing.T) {
	sc, err := Parse([]byte(three("workloads: [{name: w, kind: Job, replicas: 7}, {name: v, kind: Deployment, replicas: 1}]")))
	if err != nil {
		t.Fatal(err)
	}
	c, job, web := sc.Cluster, sc.Workloads[0], sc.Workloads[1]
	if sc.Duration.D() != time.Hour || sc.Seed != 1 || c.CPU != "32" || c.Memory != "128Gi" || c.MaxPods != 110 ||
		c.APILatency.D() != 10*time.Millisecond || c.WatchLatency.D() != 10*time.Millisecond || c.PodStart.D() != 3*time.Second ||
		c.PodStop.D() != 2*time.Second || c.Boot.D() != time.Minute {
		t.Errorf("a cluster's defaults: %+v", sc)
	}
	if job.Completions != 7 || job.RunsFor.D() != 10*time.Minute || job.Count != 1 || job.CPU != "100m" || job.Memory != "128Mi" {
		t.Errorf("a Job's defaults: %+v", job)
	}
	if web.Completions != 0 || web.RunsFor != 0 {
		t.Errorf("a Deployment completes: %+v", web)
	}
	given, err := Parse([]byte("duration: 5m\nseed: 9\ncluster: {cpu: '2', memory: 4Gi, maxPods: 5, apiLatency: 1ms, watchLatency: 2ms, " +
		"podStart: 3ms, " +
		"podStop: 4ms, boot: 5ms, zones: [{name: a, nodes: 1}]}\nworkloads: [{name: w, kind: Job, replicas: 1, completions: 3, " +
		"runsFor: 1m, " +
		"cpu: 1m, memory: 1Mi, count: 2}]"))
	if err != nil {
		t.Fatal(err)
	}
	g, w := given.Cluster, given.Workloads[0]
	if given.Duration.D() != 5*time.Minute || given.Seed != 9 || g.CPU != "2" || g.Memory != "4Gi" || g.MaxPods != 5 ||
		g.APILatency.D() != time.Millisecond || g.Boot.D() != 5*time.Millisecond || w.Completions != 3 || w.RunsFor.D() != time.Minute ||
		w.CPU != "1m" || w.Memory != "1Mi" || w.Count != 2 {
		t.Errorf("what was given is replaced: %+v", given)
	}
}

// TestSettingsAreTheControllers: every flag that a scenario may set changes one
// value, and the values without flags are the controllers' own defaults.
func TestSettingsAreTheControllers(t *testing.T) {
	values := map[string]string{"node-monitor-grace-period": "47s", "node-startup-grace-period": "3m", "node-eviction-rate": "0.7",
		"secondary-node-eviction-rate": "0.03", "unhealthy-zone-threshold": "0.9", "large-cluster-size-threshold": "7",
		"default-not-ready-toleration-seconds": "17", "default-unreachable-toleration-seconds": "19", "node-lease-duration-seconds": "23",
		"node-status-report-frequency": "29s"}
	for _, name := range allFlags() {
		if values[name] == "" {
			t.Errorf("no value is tried for the flag %s", name)
			continue
		}
		sc := &Scenario{Flags: map[string]any{name: values[name]}}
		got, err := sc.settings()
		if err != nil {
			t.Fatal(err)
		}
		a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", defaults())
		if a == b {
			t.Errorf("%s=%s changes nothing", name, values[name])
		}
		if n := differences(a, b); n != 1 {
			t.Errorf("%s=%s changes %d values:\n%s\n%s", name, values[name], n, a, b)
		}
	}
}

// differences counts the words in which two texts of the same form differ.
func differences(a, b string) (n int) {
	x, y := strings.Fields(a), strings.Fields(b)
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			n++
		}
	}
	return n
}
