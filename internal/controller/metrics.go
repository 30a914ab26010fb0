package controller

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	kmetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // what queueMetrics joins

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

// queueMetrics are client-go's workqueue_* metrics for one name: the very ones
// of k8s.io/component-base/metrics/prometheus/workqueue, so client-go's own
// queues of this process show in the same families.
type queueMetrics struct {
	depth, unfinished, longest prometheus.Gauge
	adds, retries              prometheus.Counter
	latency, working           prometheus.Observer

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
	if len(measured.byName) == 0 {
		// The library registers its metrics with the first queue that has a name.
		workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: name}).ShutDown()
		legacyregistry.Registerer().MustRegister(refresher{})
	}
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
	gauge := func(key, help string) prometheus.Gauge {
		own := prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "workqueue", Name: key, Help: "[BETA] " + help}, []string{"name"})
		if theirs, ok := registered(own).(*kmetrics.GaugeVec); ok {
			own = theirs.GaugeVec
		}
		return own.WithLabelValues(name)
	}
	counter := func(key, help string) prometheus.Counter {
		own := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "workqueue", Name: key, Help: "[BETA] " + help}, []string{"name"})
		if theirs, ok := registered(own).(*kmetrics.CounterVec); ok {
			own = theirs.CounterVec
		}
		return own.WithLabelValues(name)
	}
	histogram := func(key, help string) prometheus.Observer {
		own := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "workqueue", Name: key, Help: "[BETA] " + help,
			Buckets: prometheus.ExponentialBuckets(10e-9, 10, 10)}, []string{"name"})
		if theirs, ok := registered(own).(*kmetrics.HistogramVec); ok {
			own = theirs.HistogramVec
		}
		return own.WithLabelValues(name)
	}
	return &queueMetrics{
		depth:   gauge("depth", "Current depth of workqueue"),
		adds:    counter("adds_total", "Total number of adds handled by workqueue"),
		retries: counter("retries_total", "Total number of retries handled by workqueue"),
		latency: histogram("queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested."),
		working: histogram("work_duration_seconds", "How long in seconds processing an item from workqueue takes."),
		unfinished: gauge("unfinished_work_seconds", "How many seconds of work has done that is in progress and hasn't been observed by "+
			"work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at "+
			"which this increases."),
		longest: gauge("longest_running_processor_seconds",
			"How many seconds has the longest running processor for workqueue been running."),
	}
}

// registered is what is registered under the description of a collector.
func registered(c prometheus.Collector) prometheus.Collector {
	var twice prometheus.AlreadyRegisteredError
	if errors.As(legacyregistry.Registerer().Register(c), &twice) {
		return twice.ExistingCollector
	}
	return c
}

// refresher brings the gauges of running work up to date whenever metrics are
// read, which spares a ticker. They may be those of the reading before.
type refresher struct{}

// Describe says that nothing of its own is collected.
func (refresher) Describe(chan<- *prometheus.Desc) {}

// Collect sets the gauges.
func (refresher) Collect(chan<- prometheus.Metric) {
	measured.Lock()
	defer measured.Unlock()
	for _, m := range measured.byName {
		m.mu.Lock()
		sum, longest := m.queue.work(time.Now())
		m.mu.Unlock()
		m.unfinished.Set(sum.Seconds())
		m.longest.Set(longest.Seconds())
	}
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
