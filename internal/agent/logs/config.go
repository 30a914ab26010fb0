package logs

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// Bounds fills in a configuration's bounds from the kubelet's.
func (c *Config) Bounds(k *kubeletv1beta1.KubeletConfiguration) error {
	c.MaxSize, c.MaxFiles, c.Workers = 10<<20, 5, int(ptr.Deref(k.ContainerLogMaxWorkers, 1))
	if k.ContainerLogMaxSize != "" {
		q, err := resource.ParseQuantity(k.ContainerLogMaxSize)
		if err != nil {
			return fmt.Errorf("reading containerLogMaxSize %q: %w", k.ContainerLogMaxSize, err)
		}
		c.MaxSize = q.Value()
	}
	if k.ContainerLogMaxFiles != nil {
		c.MaxFiles = int(*k.ContainerLogMaxFiles)
	}
	if k.ContainerLogMonitorInterval != nil {
		c.Interval = k.ContainerLogMonitorInterval.Duration
	}
	return nil
}
