package reach

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// restMetrics count requests to API servers under the names that every
// Kubernetes component has for them. client-go's own are of the whole process:
// they serve where an agent is one.
type restMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewRESTMetrics returns metrics that are registered; a nil registry keeps
// them to themselves.
func NewRESTMetrics(registry prometheus.Registerer) (*restMetrics, error) {
	m := &restMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_requests_total",
			Help: "Requests to API servers, by status code, method and host."},
			[]string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rest_client_request_duration_seconds",
			Help:    "Seconds until an API server began to answer, by verb and host.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60}}, []string{"verb", "host"}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Wrap counts what goes through a transport. It fits rest.Config.Wrap.
func (m *restMetrics) Wrap(next http.RoundTripper) http.RoundTripper {
	return counting{next, m}
}

type counting struct {
	next    http.RoundTripper
	metrics *restMetrics
}

// RoundTrip sends the request. One without an answer counts as "<error>".
func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := c.next.RoundTrip(req)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	c.metrics.requests.WithLabelValues(code, req.Method, req.URL.Host).Inc()
	c.metrics.duration.WithLabelValues(req.Method, req.URL.Host).Observe(time.Since(began).Seconds())
	return resp, err
}

// WrappedRoundTripper is the transport below: client-go looks for it there.
func (c counting) WrappedRoundTripper() http.RoundTripper { return c.next }
