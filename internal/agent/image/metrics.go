package image

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	pulls *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_image_pull_duration_seconds",
		Help:    "Time that image pulls took in the runtime, by result, without waiting for a slot.",
		Buckets: []float64{.1, .5, 1, 5, 10, 20, 30, 60, 180, 600, 1200},
	}, []string{"result"})}
	if r == nil {
		return m
	}
	err := r.Register(m.pulls)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(*prometheus.HistogramVec); ok {
			m.pulls = old
		}
	}
	return m
}

func (m *metrics) observe(took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.pulls.WithLabelValues(result).Observe(took.Seconds())
}
