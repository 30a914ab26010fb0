package metrics

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/metrics/pkg/apis/metrics"
)

// minAge is how old a container must be for its first sample to count against
// its start: a younger one has used its CPU time for starting up.
const minAge = 10 * time.Second

// usage is what a node or container used on average between two times.
type usage struct {
	At     time.Time
	Window time.Duration
	// CPU is in cores, Memory in bytes.
	CPU, Memory float64
}

// between is the usage between two samples. ok is false when the pair says
// nothing: not later, or the counter began again (a container that restarted).
func between(old, last sample) (u usage, ok bool) {
	if !old.complete() || !last.complete() || !last.At.After(old.At) || last.CPU < old.CPU {
		return u, false
	}
	d := last.At.Sub(old.At)
	return usage{At: last.At, Window: d, CPU: (last.CPU - old.CPU) / d.Seconds(), Memory: last.Memory}, true
}

// pair is what is known of one node or container: the last sample, and the
// usage that it ends.
type pair struct {
	Last  sample
	Usage usage
	Known bool // Usage is set
}

// Next is the pair after a further sample. resolution is the time between
// scrapes: the first sample of a container that is younger counts from the
// container's start, so that a pod shows up at its first scrape.
func (p pair) Next(s sample, resolution time.Duration) pair {
	if !s.complete() {
		return p
	}
	out := pair{Last: s, Usage: p.Usage, Known: p.Known}
	if restarted := s.Start.After(p.Last.Start) && !p.Last.Start.IsZero(); restarted || p.Last.At.IsZero() {
		out.Usage, out.Known = fromStart(s, resolution)
		return out
	}
	if u, ok := between(p.Last, s); ok {
		out.Usage, out.Known = u, true
	}
	return out
}

func fromStart(s sample, resolution time.Duration) (usage, bool) {
	age := s.At.Sub(s.Start)
	if s.Start.IsZero() || age < minAge || age > max(resolution, minAge) {
		return usage{}, false
	}
	return usage{At: s.At, Window: age, CPU: s.CPU / age.Seconds(), Memory: s.Memory}, true
}

// state is what is known of one node.
type state struct {
	Node       pair
	Containers map[Container]pair
}

// Next is the state after a further scrape. What the scrape does not name is
// forgotten.
func (s state) Next(scrape Scrape, resolution time.Duration) state {
	out := state{Node: s.Node.Next(scrape.Node, resolution), Containers: make(map[Container]pair, len(scrape.Containers))}
	for c, sample := range scrape.Containers {
		out.Containers[c] = s.Containers[c].Next(sample, resolution)
	}
	return out
}

// list is a usage as the API shows it: CPU in nanocores, memory in bytes.
func (u usage) list() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(int64(math.Round(u.CPU*1e9)), resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(int64(u.Memory), resource.BinarySI),
	}
}

// nodeMetrics is what the API shows of a node; nil when nothing is known.
func nodeMetrics(n *v1.Node, s state, now time.Time) *metrics.NodeMetrics {
	if !s.Node.Known {
		return nil
	}
	out := &metrics.NodeMetrics{Timestamp: metav1Time(s.Node.Usage.At), Usage: s.Node.Usage.list()}
	out.Window.Duration = s.Node.Usage.Window
	out.Name, out.Labels, out.CreationTimestamp = n.Name, n.Labels, metav1Time(now)
	return out
}

// podMetrics is what the API shows of a running pod; nil unless the usage of
// every running container is known: a sum without one of them would mislead an
// autoscaler. Time and window are those of the container measured first.
func podMetrics(p *v1.Pod, s state, now time.Time) *metrics.PodMetrics {
	if p.Status.Phase != v1.PodRunning {
		return nil
	}
	out := &metrics.PodMetrics{}
	var first usage
	for _, name := range running(p) {
		pair, ok := s.Containers[Container{p.Namespace, p.Name, name}]
		if !ok || !pair.Known {
			return nil
		}
		if first.At.IsZero() || pair.Usage.At.Before(first.At) {
			first = pair.Usage
		}
		out.Containers = append(out.Containers, metrics.ContainerMetrics{Name: name, Usage: pair.Usage.list()})
	}
	if len(out.Containers) == 0 {
		return nil
	}
	out.Name, out.Namespace, out.Labels, out.CreationTimestamp = p.Name, p.Namespace, p.Labels, metav1Time(now)
	out.Timestamp, out.Window.Duration = metav1Time(first.At), first.Window
	return out
}

// running names the containers of a pod that run, sidecars among them.
func running(p *v1.Pod) []string {
	var out []string
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			if c.State.Running != nil {
				out = append(out, c.Name)
			}
		}
	}
	return out
}
