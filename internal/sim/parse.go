package sim

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/strict"
)

// Parse reads a scenario from YAML. It refuses fields it does not know and
// values that make no sense, and names both.
func Parse(text []byte) (*Scenario, error) {
	sc, err := parse(text)
	if err != nil {
		return nil, err
	}
	if err := sc.checkCluster(); err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	return sc, sc.checkRest()
}

// ParseEvents reads a scenario that has no cluster of its own, to be played on
// one that Import fills in.
func ParseEvents(text []byte) (*Scenario, error) {
	sc, err := parse(text)
	if err != nil {
		return nil, err
	}
	if len(sc.Cluster.Zones) > 0 || len(sc.Workloads) > 0 {
		return nil, errors.New("scenario: cluster.zones and workloads must not be set: both are taken from the live cluster")
	}
	return sc, sc.checkRest()
}

func parse(text []byte) (*Scenario, error) {
	sc := &Scenario{}
	if err := strict.Unmarshal(text, sc); err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	sc.fillDefaults()
	return sc, nil
}

// Kinds of workloads.
const (
	kindDeployment  = "Deployment"
	kindStatefulSet = "StatefulSet"
	kindDaemonSet   = "DaemonSet"
	kindJob         = "Job"
	kindPods        = "Pods"
)

var kinds = []string{kindDeployment, kindStatefulSet, kindDaemonSet, kindJob, kindPods}

// fill sets what was left out.
func fill[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

func (sc *Scenario) fillDefaults() {
	fill(&sc.Duration, duration(time.Hour))
	fill(&sc.Seed, 1)
	c := &sc.Cluster
	fill(&c.CPU, "32")
	fill(&c.Memory, "128Gi")
	fill(&c.MaxPods, 110)
	fill(&c.APILatency, duration(10*time.Millisecond))
	fill(&c.WatchLatency, duration(10*time.Millisecond))
	fill(&c.PodStart, duration(3*time.Second))
	fill(&c.PodStop, duration(2*time.Second))
	fill(&c.Boot, duration(time.Minute))
	for i := range sc.Workloads {
		w := &sc.Workloads[i]
		fill(&w.Count, 1)
		fill(&w.CPU, "100m")
		fill(&w.Memory, "128Mi")
		if w.Kind == kindJob {
			fill(&w.Completions, w.Replicas)
			fill(&w.RunsFor, duration(10*time.Minute))
		}
	}
}

// checkRest refuses what makes no sense, whatever the cluster.
func (sc *Scenario) checkRest() error {
	if _, err := sc.settings(); err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	for i := range sc.Workloads {
		if err := sc.Workloads[i].check(); err != nil {
			return fmt.Errorf("scenario: workloads[%d]: %w", i, err)
		}
	}
	for i := range sc.Events {
		if err := sc.Events[i].check(sc.Duration); err != nil {
			return fmt.Errorf("scenario: events[%d]: %w", i, err)
		}
	}
	return nil
}

func (sc *Scenario) checkCluster() error {
	if len(sc.Cluster.Zones) == 0 {
		return errors.New("cluster.zones is empty: name at least one zone and its number of nodes")
	}
	seen := map[string]bool{}
	for i, z := range sc.Cluster.Zones {
		switch {
		case z.Name == "":
			return fmt.Errorf("cluster.zones[%d].name is empty", i)
		case seen[z.Name]:
			return fmt.Errorf("cluster.zones[%d].name %q is there twice", i, z.Name)
		case z.Nodes < 1:
			return fmt.Errorf("cluster.zones[%d].nodes is %d: must be at least 1", i, z.Nodes)
		case z.Racks < 0 || z.Racks > z.Nodes:
			return fmt.Errorf("cluster.zones[%d].racks is %d: must be from 0 to its %d nodes", i, z.Racks, z.Nodes)
		}
		seen[z.Name] = true
	}
	for name, text := range map[string]string{"cpu": sc.Cluster.CPU, "memory": sc.Cluster.Memory} {
		if _, err := resource.ParseQuantity(text); err != nil {
			return fmt.Errorf("cluster.%s %q: %w", name, text, err)
		}
	}
	return nil
}

func (w *workloadSpec) check() error {
	switch {
	case w.Name == "":
		return errors.New("name is empty")
	case !slices.Contains(kinds, w.Kind):
		return fmt.Errorf("kind is %q: allowed are %s", w.Kind, strings.Join(kinds, ", "))
	case w.Kind == kindDaemonSet && w.Replicas != 0:
		return errors.New("replicas must not be set: a DaemonSet has a pod on every node that fits")
	case w.Kind != kindDaemonSet && w.Replicas < 1:
		return fmt.Errorf("replicas is %d: must be at least 1", w.Replicas)
	case w.Count < 1:
		return fmt.Errorf("count is %d: must be at least 1", w.Count)
	case w.Kind != kindJob && (w.RunsFor != 0 || w.Completions != 0):
		return errors.New("runsFor and completions are for Jobs only")
	case w.MaxUnavailable < 0:
		return fmt.Errorf("maxUnavailable is %d: must not be negative", w.MaxUnavailable)
	}
	for name, text := range map[string]string{"cpu": w.CPU, "memory": w.Memory} {
		if _, err := resource.ParseQuantity(text); err != nil {
			return fmt.Errorf("%s %q: %w", name, text, err)
		}
	}
	return nil
}

func (e *clusterEvent) check(end duration) error {
	v := reflect.ValueOf(*e)
	var set, all []string
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			all = append(all, name)
			if !f.IsNil() {
				set = append(set, name)
			}
		}
	}
	if len(set) != 1 {
		return fmt.Errorf("has %d actions (%s): exactly one of %s is allowed", len(set), strings.Join(set, ", "), strings.Join(all, ", "))
	}
	if e.At > end {
		return fmt.Errorf("at %s is after the end of the run, %s", e.At.D(), end.D())
	}
	switch {
	case e.Slow != nil && e.Slow.Every == 0:
		return errors.New("slow.every is missing")
	case e.Flap != nil && (e.Flap.Down == 0 || e.Flap.Up == 0):
		return errors.New("flap.down and flap.up must both be set")
	case e.API != nil && e.API.For == 0:
		return errors.New("api.for is missing")
	case e.API != nil && e.API.Down == (e.API.Latency != 0):
		return errors.New("api needs either down or a latency")
	case e.RestartControllers != nil && e.RestartControllers.For == 0:
		return errors.New("restartControllers.for is missing")
	case e.StallWatch != nil && e.StallWatch.For == 0:
		return errors.New("stallWatch.for is missing")
	case e.Upgrade != nil && e.Upgrade.Batch < 1:
		return fmt.Errorf("upgrade.batch is %d: must be at least 1", e.Upgrade.Batch)
	}
	if s := e.sel(); s != nil && (s.Percent < 0 || s.Percent > 100 || s.Count < 0) {
		return fmt.Errorf("count %d, percent %g: must be at least 0, and percent at most 100", s.Count, s.Percent)
	}
	return nil
}

// sel is the event's choice of nodes, nil for events that have none.
func (e *clusterEvent) sel() *selection {
	switch {
	case e.Kill != nil:
		return &e.Kill.selection
	case e.Cut != nil:
		return &e.Cut.selection
	case e.Pause != nil:
		return &e.Pause.selection
	case e.Slow != nil:
		return &e.Slow.selection
	case e.NotReady != nil:
		return &e.NotReady.selection
	case e.Flap != nil:
		return &e.Flap.selection
	case e.Upgrade != nil:
		return &e.Upgrade.selection
	case e.Heal != nil:
		return e.Heal
	case e.Delete != nil:
		return e.Delete
	}
	return e.OutOfService
}
