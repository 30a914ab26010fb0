package controller

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/internal/kube"
)

// Metrics counts what controllers do. Nil counts nothing.
type Metrics struct {
	syncs    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the workload controllers' metrics; a nil registerer
// keeps them private.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	syncs, err := kube.Registered(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_workload_syncs_total",
		Help: "Objects looked at by each workload controller, by result (ok, retry).",
	}, []string{"controller", "result"}))
	if err != nil {
		return nil, err
	}
	duration, err := kube.Registered(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_workload_sync_duration_seconds",
		Help:    "Time one look at one object took, by controller.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
	}, []string{"controller"}))
	if err != nil {
		return nil, err
	}
	return &Metrics{syncs: syncs, duration: duration}, nil
}

func (m *Metrics) observe(controller string, took time.Duration, failed bool) {
	if m == nil {
		return
	}
	result := "ok"
	if failed {
		result = "retry"
	}
	m.duration.WithLabelValues(controller).Observe(took.Seconds())
	m.syncs.WithLabelValues(controller, result).Inc()
}

// queueMetrics are client-go's workqueue_* metrics for one name. Names, helps
// and buckets are those of k8s.io/component-base/metrics/prometheus/workqueue:
// client-go's own queues in this process show in the same families.
type queueMetrics struct {
	depth            prometheus.Gauge
	adds, retries    prometheus.Counter
	latency, working prometheus.Histogram

	mu sync.Mutex
	// queue is the newest of the name: a controller that starts again makes
	// another.
	queue *Queue
}

var measured = struct {
	sync.Mutex
	byName map[string]*queueMetrics
}{byName: map[string]*queueMetrics{}}

// measure returns the metrics of a name, which live as long as the process.
func measure(name string, q *Queue) *queueMetrics {
	measured.Lock()
	defer measured.Unlock()
	m := measured.byName[name]
	if m == nil {
		m = newQueueMetrics(name)
		measured.byName[name] = m
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = q
	m.depth.Set(0)
	return m
}

func newQueueMetrics(name string) *queueMetrics {
	opts := func(key, help string) prometheus.Opts {
		return prometheus.Opts{Subsystem: "workqueue", Name: key, Help: "[BETA] " + help, ConstLabels: prometheus.Labels{"name": name}}
	}
	histogram := func(key, help string) prometheus.Histogram {
		o := opts(key, help)
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: o.Subsystem, Name: o.Name, Help: o.Help, ConstLabels: o.ConstLabels,
			Buckets: prometheus.ExponentialBuckets(10e-9, 10, 10)})
	}
	m := &queueMetrics{
		depth:   prometheus.NewGauge(prometheus.GaugeOpts(opts("depth", "Current depth of workqueue"))),
		adds:    prometheus.NewCounter(prometheus.CounterOpts(opts("adds_total", "Total number of adds handled by workqueue"))),
		retries: prometheus.NewCounter(prometheus.CounterOpts(opts("retries_total", "Total number of retries handled by workqueue"))),
		latency: histogram("queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested."),
		working: histogram("work_duration_seconds", "How long in seconds processing an item from workqueue takes."),
	}
	unfinished := prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("unfinished_work_seconds", "How many seconds of work has done that "+
		"is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck "+
		"threads by observing the rate at which this increases.")), func() float64 { sum, _ := m.work(); return sum.Seconds() })
	longest := prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("longest_running_processor_seconds", "How many seconds has the longest running "+
		"processor for workqueue been running.")), func() float64 { _, longest := m.work(); return longest.Seconds() })
	legacyregistry.Registerer().MustRegister(m.depth, m.adds, m.retries, m.latency, m.working, unfinished, longest)
	return m
}

func (m *queueMetrics) work() (sum, longest time.Duration) {
	m.mu.Lock()
	q := m.queue
	m.mu.Unlock()
	return q.work(time.Now())
}

func (m *queueMetrics) added() {
	if m != nil {
		m.adds.Inc()
		m.depth.Inc()
	}
}

func (m *queueMetrics) taken(waited time.Duration) {
	if m != nil {
		m.depth.Dec()
		m.latency.Observe(waited.Seconds())
	}
}

func (m *queueMetrics) worked(took time.Duration) {
	if m != nil {
		m.working.Observe(took.Seconds())
	}
}

func (m *queueMetrics) retried() {
	if m != nil {
		m.retries.Inc()
	}
}
