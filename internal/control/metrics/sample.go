// Package metrics serves metrics.k8s.io, the usage of nodes and pods, from
// what the agents of the nodes measure: kubectl top and autoscalers need
// nothing else. It asks the agents only while someone asks it.
package metrics

import (
	"fmt"
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sample is what an agent measured of a node or a container at one time.
type sample struct {
	At time.Time
	// CPU is the CPU time used so far, in seconds; Memory is the working
	// set in bytes.
	CPU, Memory float64
	// Start is when the container started; zero for a node, or when unknown.
	Start time.Time
}

// complete says whether a sample can be used. A container that is just being
// made has zero for what the agent could not read yet.
func (s sample) complete() bool { return !s.At.IsZero() && s.CPU > 0 && s.Memory > 0 }

// Container names a container of the node that was asked.
type Container struct{ Namespace, Pod, Name string }

// Scrape is one answer of one agent.
type Scrape struct {
	Node       sample
	Containers map[Container]sample
}

// Parse reads an agent's /metrics/resource.
func Parse(text io.Reader) (Scrape, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Scrape{}, fmt.Errorf("reading resource metrics: %w", err)
	}
	out := Scrape{Containers: map[Container]sample{}}
	for _, m := range families["node_cpu_usage_seconds_total"].GetMetric() {
		out.Node.CPU, out.Node.At = value(m), stamp(m)
	}
	for _, m := range families["node_memory_working_set_bytes"].GetMetric() {
		out.Node.Memory = value(m)
	}
	of := func(family string, set func(s *sample, m *dto.Metric)) {
		for _, m := range families[family].GetMetric() {
			c := container(m)
			s := out.Containers[c]
			set(&s, m)
			out.Containers[c] = s
		}
	}
	of("container_cpu_usage_seconds_total", func(s *sample, m *dto.Metric) { s.CPU, s.At = value(m), stamp(m) })
	of("container_memory_working_set_bytes", func(s *sample, m *dto.Metric) { s.Memory = value(m) })
	of("container_start_time_seconds", func(s *sample, m *dto.Metric) {
		if v := value(m); v > 0 {
			s.Start = time.UnixMilli(int64(v * 1000))
		}
	})
	return out, nil
}

// value is a metric's number, whatever its type: agents have changed between
// gauge and counter.
func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return m.Untyped.GetValue()
}

// stamp is when the agent measured; zero when it does not say.
func stamp(m *dto.Metric) time.Time {
	if m.TimestampMs == nil {
		return time.Time{}
	}
	return time.UnixMilli(*m.TimestampMs)
}

func container(m *dto.Metric) Container {
	var c Container
	for _, l := range m.Label {
		switch l.GetName() {
		case "namespace":
			c.Namespace = l.GetValue()
		case "pod":
			c.Pod = l.GetValue()
		case "container":
			c.Name = l.GetValue()
		}
	}
	return c
}
