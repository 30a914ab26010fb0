package ipam

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
)

var labelsEverything = labels.Everything()

// measure registers the pools' size and use under the names that dashboards
// of upstream's range allocator use (the misspelt one is theirs). The values
// are read when scraped; they may be one step behind.
func (c *controller) measure() {
	if c.Metrics == nil {
		return
	}
	for _, pool := range c.Pools {
		l := prometheus.Labels{"clusterCIDR": pool.cluster.String()}
		for name, value := range map[string]func() float64{
			"node_ipam_controller_cidrset_usage_cidrs": func() float64 { return float64(pool.taken) / float64(pool.total) },
			"node_ipam_controller_cirdset_max_cidrs":   func() float64 { return float64(pool.total) },
		} {
			g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: "Pod CIDR ranges of the cluster CIDR.", ConstLabels: l}, value)
			if err := c.Metrics.Register(g); err != nil {
				c.Log.Warn("registering metrics", "metric", name, "error", err)
			}
		}
	}
}
