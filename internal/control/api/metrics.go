package api

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/control/api/aggregation"
	"github.com/berth-dev/berth/internal/control/metrics"
)

// installMetrics serves the usage of nodes and pods. The agents are asked
// through this server's own node proxy, which knows how to reach them and
// which of them to trust.
func (s *Server) installMetrics() ([]aggregation.Group, error) {
	nodes, pods := s.shared.Core().V1().Nodes(), s.shared.Core().V1().Pods()
	nodes.Informer() // asks the factory for it before it starts
	pods.Informer()
	list := nodes.Lister()
	feed := &metrics.Feed{
		Log: s.cfg.Log,
		Nodes: func() []string {
			all, _ := list.List(labels.Everything()) //nolint:errcheck // a cache with a selector that fits all
			out := make([]string, 0, len(all))
			for _, n := range all {
				if ready(n) {
					out = append(out, n.Name)
				}
			}
			return out
		},
		Ask: func(ctx context.Context, node string) (metrics.Scrape, error) {
			body, err := s.client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").
				Suffix("metrics/resource").Stream(ctx)
			if err != nil {
				return metrics.Scrape{}, err
			}
			defer body.Close()
			return metrics.Parse(body)
		},
	}
	group := metrics.Group(metrics.Source{Feed: feed, Nodes: list, Pods: pods.Lister()})
	if err := s.generic.InstallAPIGroup(group); err != nil {
		return nil, fmt.Errorf("installing the group of metrics: %w", err)
	}
	s.background = append(s.background, task{"asking agents for resource metrics", feed.Run})
	return []aggregation.Group{{Name: group.PrioritizedVersions[0].Group, Versions: metrics.Versions}}, nil
}

// ready leaves out nodes whose agent is known not to answer.
func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
