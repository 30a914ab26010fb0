package volume

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	operations *prometheus.HistogramVec
	written    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "storage_operation_duration_seconds",
			Help:    "Time that volume operations took, by operation and result.",
			Buckets: []float64{.001, .01, .1, .5, 1, 5, 15, 30, 60, 120},
		}, []string{"operation_name", "status"}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_volume_contents_written_total",
			Help: "Times that the contents of a configMap, secret, downward or projected volume were written.",
		}),
	}
	if r != nil {
		m.operations = register(r, m.operations)
		m.written = register(r, m.written)
	}
	return m
}

// register uses the collector that is there already when two managers share
// one process.
func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	err := r.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}

func (m *metrics) observe(operation string, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.operations.WithLabelValues(operation, status).Observe(took.Seconds())
}
