package ipam

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
)

var labelsEverything = labels.Everything()

// measure registers the pools' size and use under the names that dashboards
// of upstream's range allocator use (the misspelt one is theirs). A scrape
// reads the counts the controller last published, never the pools: those
// belong to its goroutine alone.
func (c *controller) measure() {
	if c.Metrics == nil {
		return
	}
	for i, pool := range c.Pools {
		taken, total := &c.taken[i], float64(pool.total)
		l := prometheus.Labels{"clusterCIDR": pool.cluster.String()}
		for name, value := range map[string]func() float64{
			"node_ipam_controller_cidrset_usage_cidrs": func() float64 { return float64(taken.Load()) / total },
			"node_ipam_controller_cirdset_max_cidrs":   func() float64 { return total },
		} {
			g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: "Pod CIDR ranges of the cluster CIDR.", ConstLabels: l}, value)
			if err := c.Metrics.Register(g); err != nil {
				c.Log.Warn("registering metrics", "metric", name, "error", err)
			}
		}
	}
}

// publish makes the pools' present use visible to scrapes.
func (c *controller) publish() {
	for i, pool := range c.Pools {
		c.taken[i].Store(int64(pool.taken))
	}
}
