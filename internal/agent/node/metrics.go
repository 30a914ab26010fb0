package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

type metrics struct {
	statusErrors prometheus.Counter
	leaseErrors  prometheus.Counter
	ready        prometheus.Gauge
	// The phases of a new node's way: to the agent, to its first try to
	// register, to the Node object, to Ready; and the whole.
	preAgent, preRegistration, registration, postRegistration, startup prometheus.Gauge
	name                                                               *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer, node string) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		statusErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_agent_node_status_errors_total",
			Help: "Node status posts that failed."}),
		leaseErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_agent_node_lease_errors_total",
			Help: "Lease renewals that failed."}),
		ready: gauge("berth_agent_node_ready_seconds", "Seconds from the start of the agent to the first Ready status it posted."),

		preAgent: gauge("kubelet_node_startup_pre_kubelet_duration_seconds",
			"Seconds from the machine's boot to the agent's start. Like the other phases 0 unless this agent made the Node."),
		preRegistration: gauge("kubelet_node_startup_pre_registration_duration_seconds",
			"Seconds from the agent's start to its first try to register the Node."),
		registration: gauge("kubelet_node_startup_registration_duration_seconds",
			"Seconds from the first try to register the Node to its being there."),
		postRegistration: gauge("kubelet_node_startup_post_registration_duration_seconds",
			"Seconds from the Node's registration to its first being Ready."),
		startup: gauge("kubelet_node_startup_duration_seconds",
			"Seconds from the machine's boot to the Node's first being Ready."),

		name: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "The node's name. The count is always 1."},
			[]string{"node"}),
	}
	m.name.WithLabelValues(node).Set(1)
	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.statusErrors, m.leaseErrors, m.ready, m.name, m.preAgent, m.preRegistration,
		m.registration, m.postRegistration, m.startup} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// startup are the moments of a new node's way to Ready. Those of a node that
// was registered before say nothing about starting: they stay zero.
type startup struct{ booted, began, asked, registered, ready time.Time }

// show sets the phases, once the node is Ready.
func (m *metrics) show(s startup) {
	if s.registered.IsZero() || s.ready.IsZero() || s.booted.IsZero() {
		return
	}
	m.preAgent.Set(s.began.Sub(s.booted).Seconds())
	m.preRegistration.Set(s.asked.Sub(s.began).Seconds())
	m.registration.Set(s.registered.Sub(s.asked).Seconds())
	m.postRegistration.Set(s.ready.Sub(s.registered).Seconds())
	m.startup.Set(s.ready.Sub(s.booted).Seconds())
}

// bootTime is when the host started, zero if the kernel does not say.
func bootTime(now time.Time) time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(up.Nano()))
}
