package volume

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

type metrics struct {
	operations *prometheus.HistogramVec
	// calls are those to CSI drivers.
	calls   *prometheus.HistogramVec
	written prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "storage_operation_duration_seconds",
			Help:    "Time that volume operations took, by operation and result.",
			Buckets: []float64{.001, .01, .1, .5, 1, 5, 15, 30, 60, 120},
		}, []string{"operation_name", "status"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "csi_operations_seconds",
			Help:    "Time that calls to CSI drivers took, by driver, method and gRPC code.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_volume_contents_written_total",
			Help: "Times that the contents of a configMap, secret, downward or projected volume were written.",
		}),
	}
	if r != nil {
		m.operations = register(r, m.operations)
		m.calls = register(r, m.calls)
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
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.operations.WithLabelValues(operation, result).Observe(took.Seconds())
}

// called notes a call to a driver.
func (m *metrics) called(driver, method string, took time.Duration, err error) {
	m.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(took.Seconds())
}
