package policy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/policy/model"
)

type metrics struct {
	duration          prometheus.Histogram
	failures, repairs prometheus.Counter
	rows              prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_network_policy_" + name, Help: help})
	}
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_network_policy_sync_duration_seconds",
			Help:    "Time from the decision on changed pods and policies to the kernel having it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}),
		failures: counter("sync_failures_total", "Writes that the kernel refused."),
		repairs:  counter("repairs_total", "Times that the kernel did not hold what was written."),
		rows:     counter("rows_written_total", "Rows added to or deleted from sets and maps."),
	}
	return m, errors.Join(r.Register(m.duration), r.Register(m.failures), r.Register(m.repairs), r.Register(m.rows))
}

func (m *metrics) observe(c *model.Changes, took time.Duration) {
	if c.Empty() {
		return
	}
	m.duration.Observe(took.Seconds())
	m.rows.Add(float64(len(c.Add) + len(c.Del) + len(c.Guard) + len(c.Unguard)))
}
