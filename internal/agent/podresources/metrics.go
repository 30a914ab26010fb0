package podresources

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have the kubelet's names.
type metrics struct {
	all              *prometheus.CounterVec
	requests, failed map[string]*prometheus.CounterVec // by method
}

// methods are the API's, by what metrics call them.
var methods = map[string]string{"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_pod_resources_endpoint_" + name, Help: help},
			[]string{"server_api_version"})
	}
	m := &metrics{all: counter("requests_total", "Requests to the pod resources API."), requests: map[string]*prometheus.CounterVec{},
		failed: map[string]*prometheus.CounterVec{}}
	list := []prometheus.Collector{m.all}
	for method, name := range methods {
		m.requests[method] = counter("requests_"+name, method+" requests to the pod resources API.")
		m.failed[method] = counter("errors_"+name, method+" requests to the pod resources API that failed.")
		list = append(list, m.requests[method], m.failed[method])
	}
	if registry == nil {
		return m, nil
	}
	var errs []error
	for _, c := range list {
		errs = append(errs, registry.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering the metrics of the pod resources API: %w", err)
	}
	return m, nil
}

// count notes a call of "/v1.PodResourcesLister/List".
func (m *metrics) count(full string, err error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	version, _, _ := strings.Cut(service, ".")
	m.all.WithLabelValues(version).Inc()
	if c := m.requests[method]; c != nil {
		c.WithLabelValues(version).Inc()
	}
	if c := m.failed[method]; c != nil && err != nil {
		c.WithLabelValues(version).Inc()
	}
}
