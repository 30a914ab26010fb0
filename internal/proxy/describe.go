package proxy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// Describe tells what a proxy of a node would program for a Service, from
// what the API holds now; nothing is said of the kernel.
func Describe(ctx context.Context, client kubernetes.Interface, node string, n model.Name) ([]Line, error) {
	svc, err := client.CoreV1().Services(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return []Line{{Text: fmt.Sprintf("there is no Service %s", n)}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", n, err)
	}
	slices, err := client.DiscoveryV1().EndpointSlices(n.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + n.Name})
	if err != nil {
		return nil, fmt.Errorf("reading the EndpointSlices of Service %s: %w", n, err)
	}
	self, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading node %s: %w", node, err)
	}
	var out []Line
	for _, f := range []model.Family{model.V4, model.V6} {
		m := model.New(model.Config{Family: f, NodeName: node})
		if err == nil {
			m.SetNode(self.Labels[corev1.LabelTopologyZone], nil)
		}
		m.SetService(svc)
		for i := range slices.Items {
			m.SetSlice(&slices.Items[i])
		}
		m.Commit()
		for _, s := range m.Describe(n) {
			out = append(out, Line{Text: s.Text})
		}
	}
	return out, nil
}
