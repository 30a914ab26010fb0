package dra

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// anyDriver stands for all drivers: a claim may have devices of several.
const anyDriver = "<any>"

// metrics have the kubelet's names: dashboards look for them.
type metrics struct {
	operations, calls *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer, m *Manager) (*metrics, error) {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dra_" + name, Help: help, Buckets: prometheus.DefBuckets}, labels)
	}
	out := &metrics{
		operations: histogram("operations_duration_seconds",
			"Seconds to prepare or give back all claims of a pod, by what was done and whether it failed.", "operation_name", "is_error"),
		calls: histogram("grpc_operations_duration_seconds", "Seconds of calls of drivers, by driver, method and answer.",
			"driver_name", "method_name", "grpc_status_code"),
	}
	if registry == nil {
		return out, nil
	}
	inUse := &claimsInUse{m: m, desc: prometheus.NewDesc("dra_resource_claims_in_use",
		"Resource claims that pods of this node use, by driver, and all of them as "+anyDriver+".", []string{"driver_name"}, nil)}
	if err := errors.Join(registry.Register(out.operations), registry.Register(out.calls), registry.Register(inUse)); err != nil {
		return nil, fmt.Errorf("registering the metrics of resource claims: %w", err)
	}
	return out, nil
}

// done notes how long an operation on a pod's claims took.
func (m *metrics) done(operation string, began time.Time, err error) {
	m.operations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(time.Since(began).Seconds())
}

// measure notes each call of a driver.
func (m *metrics) measure(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String()).Observe(time.Since(began).Seconds())
		return err
	}
}

// claimsInUse counts when it is asked.
type claimsInUse struct {
	m    *Manager
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *claimsInUse) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector.
func (c *claimsInUse) Collect(out chan<- prometheus.Metric) {
	count := map[string]int{anyDriver: 0}
	c.m.mu.Lock()
	for _, info := range c.m.claims {
		count[anyDriver]++
		for driver := range info.DriverState {
			count[driver]++
		}
	}
	c.m.mu.Unlock()
	for driver, n := range count {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), driver)
	}
}
