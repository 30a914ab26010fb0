package hpa

import (
	"fmt"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// groups are the pods of a target by what can be said of their usage.
type groups struct {
	// ready counts those whose value is used as it is.
	ready int
	// unready are those that start, or whose value was measured while they
	// did; missing have no value; ignored end or have failed.
	unready, missing, ignored []string
}

// group sorts the pods. Only for CPU time does a start distort the
// value: a pod uses much of it to start, and memory says the truth at once.
func (r *round) group(name v1.ResourceName, values map[string]podValue) groups {
	var g groups
	for _, p := range r.in.Pods {
		value, measured := values[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == v1.PodFailed:
			g.ignored = append(g.ignored, p.Name)
		case p.Status.Phase == v1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !measured:
			g.missing = append(g.missing, p.Name)
		case name == v1.ResourceCPU && r.starting(p, value):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

// starting says whether a pod's CPU time is that of its start.
func (r *round) starting(p *v1.Pod, value podValue) bool {
	c := podutil.Condition(p, v1.PodReady)
	if c == nil || p.Status.StartTime == nil {
		return true
	}
	if p.Status.StartTime.Add(r.in.Settings.CPUInitialization).After(r.in.Now) {
		return c.Status == v1.ConditionFalse || value.At.Before(c.LastTransitionTime.Add(value.Window))
	}
	return c.Status == v1.ConditionFalse && p.Status.StartTime.Add(r.in.Settings.InitialReadiness).After(c.LastTransitionTime.Time)
}

// readyPods counts the pods that run and are ready.
func readyPods(pods []*v1.Pod) int {
	n := 0
	for _, p := range pods {
		if p.Status.Phase == v1.PodRunning && podutil.Ready(p) {
			n++
		}
	}
	return n
}

// measure is how a set of values compares with the target: 1 is just right.
type measure func(values map[string]int64) (ratio float64, o outcome, err error)

// average is the count that brings the mean of the pods' values to the target,
// in thousandths. name is empty for a metric that is no resource.
func (r *round) average(name v1.ResourceName, target int64, values map[string]podValue) (outcome, error) {
	mean := func(values map[string]int64) (float64, outcome, error) {
		var sum int64
		for _, v := range values {
			sum += v
		}
		o := outcome{raw: sum, average: sum / int64(len(values))}
		return float64(o.average) / float64(target), o, nil
	}
	return r.count(name, values, mean, func(string) int64 { return target })
}

// utilization is the count that brings the use of what the pods request to the
// target, in percent.
func (r *round) utilization(name v1.ResourceName, container string, target int32, values map[string]podValue) (outcome, error) {
	requests := map[string]int64{}
	for _, p := range r.in.Pods {
		n, err := request(p, name, container)
		if err != nil {
			return outcome{}, fmt.Errorf("failed to get pod requests: %w", err)
		}
		requests[p.Name] = n
	}
	used := func(values map[string]int64) (float64, outcome, error) {
		var sum, requested, n int64
		for pod, v := range values {
			if asked, ok := requests[pod]; ok {
				sum, requested, n = sum+v, requested+asked, n+1
			}
		}
		if requested == 0 {
			return 0, outcome{}, fmt.Errorf("no metrics returned matched known pods")
		}
		o := outcome{raw: sum, average: sum / n, percent: clamp(float64(sum * 100 / requested))}
		return float64(o.percent) / float64(target), o, nil
	}
	// A pod of which nothing is known is taken to use all it asks for before
	// replicas go.
	return r.count(name, values, used, func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 })
}

// count is the number of replicas that brings a measure of the pods' values to
// its target. assumed is the value of a pod that has none, on the way down.
func (r *round) count(name v1.ResourceName, values map[string]podValue, of measure, assumed func(pod string) int64) (outcome, error) {
	if len(r.in.Pods) == 0 {
		return outcome{}, fmt.Errorf("no pods returned by selector while calculating replica count")
	}
	g := r.group(name, values)
	known := map[string]int64{}
	for pod, v := range values {
		if !slices.Contains(g.ignored, pod) && !slices.Contains(g.unready, pod) {
			known[pod] = v.Milli
		}
	}
	if len(known) == 0 {
		return outcome{}, fmt.Errorf("did not receive metrics for targeted pods (pods might be unready)")
	}
	ratio, out, err := of(known)
	if err != nil {
		return out, err
	}
	current := r.in.Scale.Spec
	out.replicas = current
	if fill := ratio > 1 && len(g.unready) > 0; !fill && len(g.missing) == 0 {
		if !r.tolerated(ratio) {
			out.replicas = clamp(math.Ceil(ratio * float64(g.ready)))
		}
		return out, nil
	}
	// The unknown pods are given the value that speaks against a change, and
	// the change is made only if the measure still asks for it.
	filled := maps.Clone(known)
	for _, pod := range g.missing {
		filled[pod] = 0
		if ratio < 1 {
			filled[pod] = assumed(pod)
		}
	}
	if ratio > 1 {
		for _, pod := range g.unready {
			filled[pod] = 0
		}
	}
	again, _, err := of(filled)
	if err != nil {
		return out, err
	}
	if r.tolerated(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return out, nil
	}
	n := clamp(math.Ceil(again * float64(len(filled))))
	if again < 1 && n > current || again > 1 && n < current {
		return out, nil
	}
	out.replicas = n
	return out, nil
}

// request is what a pod asks for of a resource, in thousandths: what the pod
// as a whole asks for if it does (KEP-2837), else its containers and sidecars
// together; of one container alone if it is named.
func request(p *v1.Pod, name v1.ResourceName, container string) (int64, error) {
	if container == "" && p.Spec.Resources != nil {
		if q, ok := p.Spec.Resources.Requests[name]; ok {
			return q.MilliValue(), nil
		}
	}
	var sum int64
	found := false
	add := func(c *v1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		found = true
		q, ok := c.Resources.Requests[name]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, p.Name)
		}
		sum += q.MilliValue()
		return nil
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	for i := range p.Spec.Containers {
		if err := add(&p.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not present in Pod %s", container, p.Name)
	}
	return sum, nil
}
