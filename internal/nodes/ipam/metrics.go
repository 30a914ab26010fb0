package ipam

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/kube"
)

// meter holds the metrics under the names that dashboards of upstream's range
// allocator use (the misspelt one is theirs). All are by cluster CIDR.
type meter struct {
	usage, max            *prometheus.GaugeVec
	allocations, releases *prometheus.CounterVec
	tries                 *prometheus.HistogramVec
}

func newMeter(r prometheus.Registerer) (*meter, error) {
	const prefix = "node_ipam_controller_"
	labels := []string{"clusterCIDR"}
	var m meter
	var err error
	if m.usage, err = kube.Registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "cidrset_usage_cidrs",
		Help: "Share of the ranges that is in use."}, labels)); err != nil {
		return nil, err
	}
	if m.max, err = kube.Registered(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "cirdset_max_cidrs",
		Help: "Ranges there are."}, labels)); err != nil {
		return nil, err
	}
	if m.allocations, err = kube.Registered(r,
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "cidrset_cidrs_allocations_total", Help: "Ranges given out."},
			labels)); err != nil {
		return nil, err
	}
	if m.releases, err = kube.Registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "cidrset_cidrs_releases_total",
		Help: "Ranges given back."}, labels)); err != nil {
		return nil, err
	}
	m.tries, err = kube.Registered(r,
		prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "cidrset_allocation_tries_per_request",
			Help: "Ranges looked at for each one given out: always one here.", Buckets: prometheus.ExponentialBuckets(1, 5, 5)}, labels))
	return &m, err
}

func (m *meter) allocated(p *Pool) {
	m.allocations.WithLabelValues(p.cluster.String()).Inc()
	m.tries.WithLabelValues(p.cluster.String()).Observe(1)
	m.level(p)
}

func (m *meter) released(p *Pool) {
	m.releases.WithLabelValues(p.cluster.String()).Inc()
	m.level(p)
}

func (m *meter) level(p *Pool) {
	m.usage.WithLabelValues(p.cluster.String()).Set(float64(p.taken) / float64(p.total))
}

// measure shows the pools as they are at start.
func (c *reconciler) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		c.meter.max.WithLabelValues(p.cluster.String()).Set(float64(p.total))
		c.meter.level(p)
	}
}
