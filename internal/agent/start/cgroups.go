package start

import (
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/resource"
)

// Cgroups is the pods' view of the cgroup tree; it times the work.
type Cgroups struct {
	tree *resource.Cgroups
	took *prometheus.HistogramVec
}

// NewCgroups makes the view.
func NewCgroups(tree *resource.Cgroups, register func(...prometheus.Collector)) Cgroups {
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_cgroup_manager_duration_seconds",
		Help: "Seconds that work on a pod's cgroup took, by kind of work."}, []string{"operation_type"})
	register(took)
	return Cgroups{tree, took}
}

// Ensure makes the pod's cgroup.
func (c Cgroups) Ensure(p *v1.Pod) error {
	defer prometheus.NewTimer(c.took.WithLabelValues("create")).ObserveDuration()
	_, err := c.tree.EnsurePod(p)
	return err
}

// Remove removes it.
func (c Cgroups) Remove(uid types.UID) error {
	defer prometheus.NewTimer(c.took.WithLabelValues("destroy")).ObserveDuration()
	return c.tree.RemovePod(uid)
}
