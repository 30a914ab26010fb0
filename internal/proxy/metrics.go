package proxy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// metrics carry the names dashboards for kube-proxy know.
type metrics struct {
	sync, full, partial, programming, staleTook *prometheus.HistogramVec
	last, noLocal                               *prometheus.GaugeVec
	lastQueued                                  prometheus.Gauge
	// pending and total are changes not yet in the kernel, and all, by kind.
	pending         map[string]prometheus.Gauge
	total           map[string]prometheus.Counter
	failures        prometheus.Counter
	checks, repairs prometheus.Counter
	stale           *prometheus.CounterVec
	healthz, livez  *prometheus.CounterVec
	started         time.Time
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{started: time.Now(), pending: map[string]prometheus.Gauge{}, total: map[string]prometheus.Counter{}}
	hist := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "kubeproxy", Name: name, Help: help,
			Buckets: buckets}, []string{"ip_family"}))
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help},
			[]string{label}))
	}
	counter := func(namespace, name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}))
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}, labels))
	}
	short := prometheus.ExponentialBuckets(0.001, 2, 15)
	m.sync = hist("sync_proxy_rules_duration_seconds", "Time to bring the kernel up to date, in seconds.", short)
	m.full = hist("sync_full_proxy_rules_duration_seconds", "Time of syncs that look at everything, in seconds.", short)
	m.partial = hist("sync_partial_proxy_rules_duration_seconds", "Time of syncs of what changed, in seconds.", short)
	m.programming = hist("network_programming_duration_seconds", "Time from a change of an endpoint to the kernel, in seconds.",
		programmingBuckets())
	m.last = gauges("sync_proxy_rules_last_timestamp_seconds", "When rules were last in order.", "ip_family")
	m.lastQueued = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last queued.")
	m.noLocal = gauges("sync_proxy_rules_no_local_endpoints_total", "Services with a Local policy and no endpoint on this node.",
		"ip_family", "traffic_policy")
	for _, kind := range []string{serviceChange, endpointChange} {
		m.pending[kind] = gauge("sync_proxy_rules_"+kind+"_changes_pending", "Changes of a "+kind+" that are not in the kernel yet.")
		m.total[kind] = counter("kubeproxy", "sync_proxy_rules_"+kind+"_changes_total", "Changes of a "+kind+" seen.")
	}
	m.failures = counter("kubeproxy", "sync_proxy_rules_nftables_sync_failures_total", "Writes to the kernel that failed.")
	// What is no longer needed goes in the transaction that replaces it, so
	// there is no clean-up of its own that could fail: this stays zero.
	counter("kubeproxy", "sync_proxy_rules_nftables_cleanup_failures_total", "Clean-ups of the kernel that failed.")
	m.checks = counter("berth", "proxy_table_checks_total", "Looks at a whole table after somebody else changed any.")
	m.repairs = counter("berth", "proxy_table_repairs_total", "Tables found changed by somebody else, and put right.")
	m.stale = counters("conntrack_reconciler_deleted_entries_total", "Stale connections removed.", "ip_family")
	m.staleTook = hist("conntrack_reconciler_sync_duration_seconds", "Time to find and remove stale connections, in seconds.", short)
	m.healthz = counters("proxy_healthz_total", "Answers to /healthz.", "code")
	m.livez = counters("proxy_livez_total", "Answers to /livez.", "code")
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

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func (m *metrics) queued(kind string, now time.Time) {
	m.lastQueued.Set(seconds(now))
	if m.pending[kind] != nil {
		m.pending[kind].Inc()
		m.total[kind].Inc()
	}
}

// taken says that events have reached the kernel, or will with the next try.
func (m *metrics) taken(queue []event) {
	for _, e := range queue {
		if m.pending[e.kind] != nil {
			m.pending[e.kind].Dec()
		}
	}
}

func (m *metrics) observe(w *writer, full bool, took time.Duration, c *model.Changes) {
	now, family := time.Now(), w.layout.Family.String()
	m.sync.WithLabelValues(family).Observe(took.Seconds())
	kind := m.partial
	if full {
		kind = m.full
	}
	kind.WithLabelValues(family).Observe(took.Seconds())
	m.last.WithLabelValues(family).Set(seconds(now))
	lacks := w.model.NoLocal()
	m.noLocal.WithLabelValues(family, "internal").Set(float64(lacks.Internal))
	m.noLocal.WithLabelValues(family, "external").Set(float64(lacks.External))
	for _, t := range c.Triggers {
		// What happened before the start says nothing about the proxy.
		if at, err := time.Parse(time.RFC3339Nano, t.Time); err == nil && at.After(m.started) && now.After(at) {
			m.programming.WithLabelValues(family).Observe(now.Sub(at).Seconds())
		}
	}
}
