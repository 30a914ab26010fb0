package volume

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/stats"
	"github.com/berth-dev/berth/internal/podutil"
)

// Inventory lists what volumes pods have, for those who measure and count them.
type Inventory struct {
	Manager *Manager
	// Pods are all pods, Pod one of them.
	Pods func() []*v1.Pod
	Pod  func(uid types.UID) (*v1.Pod, bool)
	// Mounted are the volumes of a pod that are mounted, by name.
	Mounted func(uid types.UID) map[string]Mounted
}

// Measurable lists the volumes of a pod whose size says something: all but host
// paths, images and network file systems, which are not the pod's.
func (in Inventory) Measurable(uid types.UID) []stats.Volume {
	p, ok := in.Pod(uid)
	if !ok {
		return nil
	}
	mounted := in.Mounted(uid)
	var list []stats.Volume
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		m, ok := mounted[v.Name]
		if !ok || m.HostPath == "" {
			continue
		}
		out, ok := measurableAs(p, v)
		if !ok {
			continue
		}
		out.Path = m.HostPath
		ask, driven := in.Manager.Measure(uid, v.Name)
		switch {
		case ask != nil:
			out.Measure = func(ctx context.Context) (stats.VolumeSize, error) {
				size, err := ask(ctx)
				return stats.VolumeSize(size), err
			}
		case driven || m.Block:
			continue // no one knows
		}
		list = append(list, out)
	}
	return list
}

// measurableAs says how a volume is measured; ok is false for one that is not.
// Secrets, tokens and downward API files have a file system of their own in
// memory, config maps lie on the node's disk.
func measurableAs(p *v1.Pod, v *v1.Volume) (out stats.Volume, ok bool) {
	out.Name = v.Name
	switch {
	case v.EmptyDir != nil:
		out.Shared = v.EmptyDir.Medium == v1.StorageMediumDefault
	case v.ConfigMap != nil:
		out.Shared = true
	case v.PersistentVolumeClaim != nil:
		out.Claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		out.Claim = p.Name + "-" + v.Name
	case v.CSI == nil && v.Secret == nil && v.Projected == nil && v.DownwardAPI == nil:
		return out, false
	}
	return out, true
}

// counts is volume_manager_total_volumes: the volumes of pods, by what they are
// made of, as wanted and as they are.
type counts struct {
	in   Inventory
	desc *prometheus.Desc
}

// Counts is the metric of how many volumes there are.
func (in Inventory) Counts() prometheus.Collector {
	return &counts{in, prometheus.NewDesc("volume_manager_total_volumes", "Volumes of pods, as wanted and as mounted.",
		[]string{"plugin_name", "state"}, nil)}
}

// Describe and Collect make it a metric.
func (c *counts) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c *counts) Collect(out chan<- prometheus.Metric) {
	type kind struct{ plugin, state string }
	count := map[kind]int{}
	for _, p := range c.in.Pods() {
		mounted := c.in.Mounted(p.UID)
		over := podutil.Terminal(p)
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			plugin := c.in.Manager.Plugin(p.UID, v)
			if !over {
				count[kind{plugin, "desired_state_of_world"}]++
			}
			if _, ok := mounted[v.Name]; ok {
				count[kind{plugin, "actual_state_of_world"}]++
			}
		}
	}
	for k, n := range count {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), k.plugin, k.state)
	}
}
