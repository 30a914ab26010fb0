package stats

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// volumeMetrics are the kubelet_volume_stats_* series: one of each per claim.
type volumeMetrics struct {
	provider *Provider
	series   []volumeSeries
}

type volumeSeries struct {
	desc  *prometheus.Desc
	value func(*fsUsage) uint64
}

// VolumeMetrics shows how full the volumes of claims are, from the last
// reading of disks. A scrape starts a new one if that is old and never waits
// for it longer than the first reading may take.
func (p *Provider) VolumeMetrics() prometheus.Collector {
	series := func(name, help string, value func(*fsUsage) uint64) volumeSeries {
		return volumeSeries{prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil),
			value}
	}
	return &volumeMetrics{provider: p, series: []volumeSeries{
		series("capacity_bytes", "Capacity of the volume in bytes.", func(u *fsUsage) uint64 { return u.capacity }),
		series("available_bytes", "Bytes available in the volume.", func(u *fsUsage) uint64 { return u.available }),
		series("used_bytes", "Bytes used in the volume.", func(u *fsUsage) uint64 { return u.used }),
		series("inodes", "Most inodes the volume can have.", func(u *fsUsage) uint64 { return u.inodes }),
		series("inodes_free", "Inodes free in the volume.", func(u *fsUsage) uint64 { return u.inodesFree }),
		series("inodes_used", "Inodes used in the volume.", func(u *fsUsage) uint64 { return u.inodesUsed }),
	}}
}

func (v *volumeMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, s := range v.series {
		out <- s.desc
	}
}

func (v *volumeMetrics) Collect(out chan<- prometheus.Metric) {
	facts := v.provider.disk.get(context.Background())
	seen := map[types.NamespacedName]bool{}
	for _, pod := range v.provider.cfg.Pods() {
		for i := range facts.volumes[pod.UID] {
			volume := &facts.volumes[pod.UID][i]
			claim := types.NamespacedName{Namespace: pod.Namespace, Name: volume.Claim}
			// Pods may share a claim; a series must be there once.
			if volume.Claim == "" || seen[claim] {
				continue
			}
			seen[claim] = true
			for _, s := range v.series {
				out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(s.value(&volume.usage)), claim.Namespace,
					claim.Name)
			}
		}
	}
}
