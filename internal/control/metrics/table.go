package metrics

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	v1 "k8s.io/api/core/v1"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "CPU", Type: "string", Description: "Processor time used in the window"},
	{Name: "Memory", Type: "string", Description: "Working set at the end of the window"},
	{Name: "Window", Type: "string", Description: "Time between the two measurements"},
}

// ConvertToTable makes the table of kubectl get.
func (*nodeREST) ConvertToTable(_ context.Context, obj runtime.Object, _ runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{ColumnDefinitions: columns}
	switch o := obj.(type) {
	case *metrics.NodeMetrics:
		return out, addNode(out, o)
	case *metrics.NodeMetricsList:
		out.ResourceVersion, out.Continue = o.ResourceVersion, o.Continue
		for i := range o.Items {
			if err := addNode(out, &o.Items[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("showing metrics of nodes: %T is none", obj)
}

// ConvertToTable makes the table of kubectl get.
func (*podREST) ConvertToTable(_ context.Context, obj runtime.Object, _ runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{ColumnDefinitions: columns}
	switch o := obj.(type) {
	case *metrics.PodMetrics:
		return out, addPod(out, o)
	case *metrics.PodMetricsList:
		out.ResourceVersion, out.Continue = o.ResourceVersion, o.Continue
		for i := range o.Items {
			if err := addPod(out, &o.Items[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("showing metrics of pods: %T is none", obj)
}

func addNode(t *metav1.Table, n *metrics.NodeMetrics) error {
	return addRow(t, n, n.Usage, n.Window)
}

func addPod(t *metav1.Table, p *metrics.PodMetrics) error {
	sum := v1.ResourceList{}
	for _, c := range p.Containers {
		for name, q := range c.Usage {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	return addRow(t, p, sum, p.Window)
}

func addRow(t *metav1.Table, obj runtime.Object, usage v1.ResourceList, window metav1.Duration) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("showing metrics: %w", err)
	}
	show := func(name v1.ResourceName) string {
		q, ok := usage[name]
		if !ok {
			q = resource.Quantity{}
		}
		return q.String()
	}
	t.Rows = append(t.Rows, metav1.TableRow{Cells: []any{m.GetName(), show(v1.ResourceCPU), show(v1.ResourceMemory),
		window.Duration.String()},
		Object: runtime.RawExtension{Object: obj}})
	return nil
}
