package stats

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// logMetrics is kubelet_container_log_filesystem_used_bytes.
type logMetrics struct {
	provider *Provider
	desc     *prometheus.Desc
}

// LogMetrics shows what the logs of each container occupy, from the last
// reading of disks.
func (p *Provider) LogMetrics() prometheus.Collector {
	return &logMetrics{p, prometheus.NewDesc("kubelet_container_log_filesystem_used_bytes",
		"Bytes used by the container's logs on the filesystem.",
		[]string{"uid", "namespace", "pod", "container"}, nil)}
}

func (l *logMetrics) Describe(out chan<- *prometheus.Desc) { out <- l.desc }

func (l *logMetrics) Collect(out chan<- prometheus.Metric) {
	facts := l.provider.disk.get(context.Background())
	for _, pod := range l.provider.cfg.Pods() {
		for container, size := range facts.logs[pod.UID] {
			out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(size.Bytes), string(pod.UID), pod.Namespace,
				pod.Name, container)
		}
	}
}
