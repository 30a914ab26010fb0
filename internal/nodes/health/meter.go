package health

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/kube"
)

// meter holds the metrics, those that upstream has under upstream's names.
type meter struct {
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	update, all             prometheus.Histogram
	holding                 prometheus.Gauge
	stale                   prometheus.Counter
}

func newMeter(r prometheus.Registerer) (*meter, error) {
	var m meter
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g, err := kube.Registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "node_collector_" + name, Help: help},
			[]string{"zone"}))
		note(err)
		return g
	}
	m.health = gauge("zone_health", "Percentage of ready nodes in the zone.")
	m.size = gauge("zone_size", "Nodes in the zone.")
	m.unhealthy = gauge("unhealthy_nodes_in_zone", "Nodes of the zone that are not ready.")
	histogram := func(name, help string) prometheus.Histogram {
		h, err := kube.Registered(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "node_collector_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}))
		note(err)
		return h
	}
	m.update = histogram("update_node_health_duration_seconds", "Time to write what is known of one node.")
	m.all = histogram("update_all_nodes_health_duration_seconds", "Time to decide about all nodes that were due.")
	var err error
	m.evictions, err = kube.Registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "node_collector_evictions_total", Help: "Nodes that got a NoExecute taint."}, []string{"zone"}))
	note(err)
	m.holding, err = kube.Registered(r, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_node_health_holding", Help: "1 while no node is marked because the API does not answer in time."}))
	note(err)
	m.stale, err = kube.Registered(r, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "berth_node_health_stale_watches_total", Help: "Times the watch of leases was found stale and started again."}))
	note(err)
	return &m, first
}

func (m *meter) zones(zs []ZoneView) {
	for _, g := range []*prometheus.GaugeVec{m.health, m.size, m.unhealthy} {
		g.Reset() // zones come and go
	}
	for _, z := range zs {
		all := z.Ready + z.NotReady
		m.size.WithLabelValues(z.Name).Set(float64(all))
		m.unhealthy.WithLabelValues(z.Name).Set(float64(z.NotReady))
		if all > 0 {
			m.health.WithLabelValues(z.Name).Set(100 * float64(z.Ready) / float64(all))
		}
	}
}
