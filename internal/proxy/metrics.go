package proxy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// metrics carry the names dashboards for kube-proxy know.
type metrics struct {
	sync, full, partial, programming *prometheus.HistogramVec
	last                             *prometheus.GaugeVec
	failures                         prometheus.Counter
	stale                            *prometheus.CounterVec
	started                          time.Time
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{started: time.Now()}
	hist := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "kubeproxy", Name: name, Help: help, Buckets: buckets}, []string{"ip_family"}))
	}
	short := prometheus.ExponentialBuckets(0.001, 2, 15)
	m.sync = hist("sync_proxy_rules_duration_seconds", "Time to bring the kernel up to date, in seconds.", short)
	m.full = hist("sync_full_proxy_rules_duration_seconds", "Time of syncs that look at everything, in seconds.", short)
	m.partial = hist("sync_partial_proxy_rules_duration_seconds", "Time of syncs of what changed, in seconds.", short)
	m.programming = hist("network_programming_duration_seconds", "Time from a change of an endpoint to the kernel, in seconds.", programmingBuckets())
	m.last = register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: "sync_proxy_rules_last_timestamp_seconds", Help: "When rules were last in order."}, []string{"ip_family"}))
	m.failures = register(reg, prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubeproxy", Name: "sync_proxy_rules_nftables_sync_failures_total", Help: "Writes to the kernel that failed."}))
	m.stale = register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubeproxy", Name: "conntrack_reconciler_deleted_entries_total", Help: "Stale connections removed."}, []string{"ip_family"}))
	return m
}

// register returns the collector to use: one registered before, by another
// proxy of this process, is shared.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	var have prometheus.AlreadyRegisteredError
	if err := reg.Register(c); errors.As(err, &have) {
		if old, ok := have.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}

func programmingBuckets() []float64 {
	b := []float64{0.25, 0.5}
	for s := 1; s < 60; s++ {
		b = append(b, float64(s))
	}
	for s := 60; s < 120; s += 5 {
		b = append(b, float64(s))
	}
	for s := 120; s <= 300; s += 30 {
		b = append(b, float64(s))
	}
	return b
}

func (m *metrics) observe(family string, full bool, took time.Duration, c *model.Changes) {
	now := time.Now()
	m.sync.WithLabelValues(family).Observe(took.Seconds())
	kind := m.partial
	if full {
		kind = m.full
	}
	kind.WithLabelValues(family).Observe(took.Seconds())
	m.last.WithLabelValues(family).Set(float64(now.UnixNano()) / 1e9)
	for _, t := range c.Triggers {
		// What happened before the start says nothing about the proxy.
		if at, err := time.Parse(time.RFC3339Nano, t.Time); err == nil && at.After(m.started) && now.After(at) {
			m.programming.WithLabelValues(family).Observe(now.Sub(at).Seconds())
		}
	}
}
