package image

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	pulls *prometheus.HistogramVec
	// sized are the pulls that succeeded, by the size of the image.
	sized *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_image_pull_duration_seconds",
		Help:    "Time that image pulls took in the runtime, by result, without waiting for a slot.",
		Buckets: []float64{.1, .5, 1, 5, 10, 20, 30, 60, 180, 600, 1200},
	}, []string{"result"}), sized: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubelet_image_pull_duration_seconds",
		Help:    "Seconds that image pulls took that succeeded, by the image's size.",
		Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
	}, []string{"image_size_in_bytes"})}
	if r == nil {
		return m
	}
	for _, vec := range []**prometheus.HistogramVec{&m.pulls, &m.sized} {
		err := r.Register(*vec)
		var dup prometheus.AlreadyRegisteredError
		if errors.As(err, &dup) {
			if old, ok := dup.ExistingCollector.(*prometheus.HistogramVec); ok {
				*vec = old
			}
		}
	}
	return m
}

// sizes are the ranges of image sizes as dashboards know them: from above the
// bytes on.
var sizes = []struct {
	above uint64
	label string
}{
	{100 << 30, "GT100GB"}, {60 << 30, "60GB-100GB"}, {40 << 30, "40GB-60GB"}, {30 << 30, "30GB-40GB"}, {20 << 30, "20GB-30GB"},
	{10 << 30, "10GB-20GB"},
	{5 << 30, "5GB-10GB"}, {1 << 30, "1GB-5GB"}, {500 << 20, "500MB-1GB"}, {100 << 20, "100MB-500MB"}, {10 << 20, "10MB-100MB"},
	{0, "0-10MB"},
}

// sizeRange is the label of a size in bytes; 0 is one that is not known.
func sizeRange(bytes uint64) string {
	for _, s := range sizes {
		if bytes > s.above {
			return s.label
		}
	}
	return "N/A"
}

// pulled notes a pull that succeeded.
func (m *metrics) pulled(took time.Duration, bytes uint64) {
	m.sized.WithLabelValues(sizeRange(bytes)).Observe(took.Seconds())
}

func (m *metrics) observe(took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.pulls.WithLabelValues(result).Observe(took.Seconds())
}
