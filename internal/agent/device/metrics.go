package device

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	registrations *prometheus.CounterVec
	allocation    *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_device_plugin_registration_total",
			Help: "Registrations of device plugins, by resource."}, []string{"resource_name"}),
		allocation: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_device_plugin_alloc_duration_seconds",
			Help:    "Seconds a device plugin took to allocate, by resource.",
			Buckets: prometheus.DefBuckets}, []string{"resource_name"}),
	}
	if registry == nil {
		return m, nil
	}
	if err := errors.Join(registry.Register(m.registrations), registry.Register(m.allocation)); err != nil {
		return nil, fmt.Errorf("registering the metrics of device plugins: %w", err)
	}
	return m, nil
}
