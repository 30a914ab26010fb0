package assign

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// metrics have the kubelet's names: dashboards look for them.
type metrics struct {
	requests, errors             prometheus.Counter
	duration                     prometheus.Histogram
	aligned, misaligned          *prometheus.CounterVec
	cpuRequests, cpuErrors       prometheus.Counter
	memoryRequests, memoryErrors prometheus.Counter
	sharedMilli, exclusive       prometheus.Gauge
	perNode                      *prometheus.GaugeVec
}

// newMetrics shows zeros from the start; those of CPUs only where
// containers can own some (pinned).
func newMetrics(registry prometheus.Registerer, pinned bool) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_" + name, Help: help})
	}
	alignment := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help}, []string{"scope", "boundary"})
	}
	m := &metrics{
		requests: counter("topology_manager_admission_requests_total", "Admissions in which resources have to be aligned."),
		errors:   counter("topology_manager_admission_errors_total", "Admissions in which resources could not be aligned."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_topology_manager_admission_duration_ms",
			Help: "Milliseconds to serve a pod admission.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 15)}),
		aligned: alignment("container_aligned_compute_resources_count", "Allocations of aligned resources, by scope and boundary."),
		misaligned: alignment("container_aligned_compute_resources_failure_count",
			"Failures to allocate aligned resources, by scope and boundary."),
		cpuRequests:    counter("cpu_manager_pinning_requests_total", "Processor allocations that required pinning."),
		cpuErrors:      counter("cpu_manager_pinning_errors_total", "Processor allocations that required pinning and failed."),
		memoryRequests: counter("memory_manager_pinning_requests_total", "Memory allocations that required pinning."),
		memoryErrors:   counter("memory_manager_pinning_errors_total", "Memory allocations that required pinning and failed."),
		sharedMilli:    gauge("cpu_manager_shared_pool_size_millicores", "Size of the pool of shared processors."),
		exclusive:      gauge("cpu_manager_exclusive_cpu_allocation_count", "Processors owned by containers."),
		perNode: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_cpu_manager_allocation_per_numa",
			Help: "Processors owned by containers, by NUMA node."}, []string{"numa_node"}),
	}
	for _, scope := range []string{"container", "pod"} {
		m.aligned.WithLabelValues(scope, "numa_node")
		m.misaligned.WithLabelValues(scope, "numa_node")
	}
	if pinned {
		m.aligned.WithLabelValues("container", "physical_cpu")
		m.aligned.WithLabelValues("container", "uncore_cache")
		m.misaligned.WithLabelValues("container", "physical_cpu")
	}
	if registry == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.errors, m.duration, m.aligned, m.misaligned, m.cpuRequests, m.cpuErrors,
		m.memoryRequests, m.memoryErrors, m.sharedMilli, m.exclusive, m.perNode} {
		errs = append(errs, registry.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering the metrics of resource assignment: %w", err)
	}
	return m, nil
}

// measure shows the state; m.mu is held or no one else knows m yet.
func (m *Manager) measure() {
	if m.cfg.CPUs == nil {
		return
	}
	owned := cpuset.New()
	for _, containers := range m.cpus.Owned {
		for _, set := range containers {
			owned = owned.Union(set)
		}
	}
	m.metrics.exclusive.Set(float64(owned.Size()))
	m.metrics.sharedMilli.Set(float64(m.cpus.Shared.Difference(m.cfg.CPUs.Reserved).Size() * 1000))
	for _, n := range m.cfg.Host.Nodes {
		here := owned.Intersection(m.cfg.Host.In(topology.Of(n.ID)))
		m.metrics.perNode.WithLabelValues(strconv.Itoa(n.ID)).Set(float64(here.Size()))
	}
}
