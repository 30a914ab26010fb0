package node

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	statusErrors prometheus.Counter
	leaseErrors  prometheus.Counter
	ready        prometheus.Gauge
	name         *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer, node string) (*metrics, error) {
	m := &metrics{
		statusErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_agent_node_status_errors_total", Help: "Node status posts that failed."}),
		leaseErrors:  prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_agent_node_lease_errors_total", Help: "Lease renewals that failed."}),
		ready:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_node_startup_duration_seconds", Help: "Seconds from the start of the agent to the first Ready status it posted."}),
		name:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubelet_node_name", Help: "The node's name. The count is always 1."}, []string{"node"}),
	}
	m.name.WithLabelValues(node).Set(1)
	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.statusErrors, m.leaseErrors, m.ready, m.name} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}
