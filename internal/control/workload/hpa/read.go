package hpa

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// reader asks the three metrics APIs. They are read by path, because which of
// them is served, and by whom, changes while the process runs.
type reader struct {
	api    rest.Interface
	mapper meta.RESTMapper
}

// The versions of the metrics APIs, the newest first. The resource metrics are
// asked in the version that every metrics-server serves.
var (
	resourceVersion  = "/apis/metrics.k8s.io/v1beta1"
	customVersions   = []string{"/apis/custom.metrics.k8s.io/v1beta2", "/apis/custom.metrics.k8s.io/v1beta1"}
	externalVersions = []string{"/apis/external.metrics.k8s.io/v1beta1"}
)

// value is one value of the custom or the external API; both write it like so
// in all their versions.
type value struct {
	Object    v1.ObjectReference `json:"describedObject"`
	Timestamp metav1.Time        `json:"timestamp"`
	Seconds   *int64             `json:"windowSeconds"`
	Window    *int64             `json:"window"`
	Value     resource.Quantity  `json:"value"`
}

type values struct {
	Items []value `json:"items"`
}

// read reads what one metric needs.
func (r reader) read(ctx context.Context, namespace, selector string, m *autoscalingv2.MetricSpec) reading {
	switch {
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		return r.resource(ctx, namespace, selector, m.Resource.Name, "")
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		return r.resource(ctx, namespace, selector, m.ContainerResource.Name, m.ContainerResource.Container)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		return r.pods(ctx, namespace, selector, m.Pods.Metric)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		return r.object(ctx, namespace, m.Object)
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		return r.external(ctx, namespace, m.External.Metric)
	}
	return reading{} // Plan says what is wrong with it
}

func (r reader) resource(ctx context.Context, namespace, selector string, name v1.ResourceName, container string) reading {
	var list metricsv1beta1.PodMetricsList
	path := resourceVersion + "/namespaces/" + namespace + "/pods"
	if err := r.get(ctx, []string{path}, url.Values{"labelSelector": {selector}}, &list); err != nil {
		return reading{Err: fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return reading{Err: fmt.Errorf("no metrics returned from resource metrics API")}
	}
	out := reading{Pods: map[string]podValue{}}
	for i := range list.Items {
		p := &list.Items[i]
		sum, known := int64(0), len(p.Containers) > 0
		found := container == ""
		for _, c := range p.Containers {
			if container != "" && c.Name != container {
				continue
			}
			found = true
			q, ok := c.Usage[name]
			known = known && ok
			sum += q.MilliValue()
		}
		if known && found {
			out.Pods[p.Name] = podValue{Milli: sum, At: p.Timestamp.Time, Window: p.Window.Duration}
		}
	}
	return out
}

func (r reader) pods(ctx context.Context, namespace, selector string, m autoscalingv2.MetricIdentifier) reading {
	query, err := metricQuery(m, "metricLabelSelector")
	if err != nil {
		return reading{Err: err}
	}
	query.Set("labelSelector", selector)
	var list values
	if err := r.get(ctx, suffixed(customVersions, "namespaces", namespace, "pods", "*", m.Name), query, &list); err != nil {
		return reading{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return reading{Err: fmt.Errorf("no metrics returned from custom metrics API")}
	}
	out := reading{Pods: map[string]podValue{}}
	for _, v := range list.Items {
		window := time.Minute // what upstream takes for an adapter that does not say
		if v.Seconds != nil {
			window = time.Duration(*v.Seconds) * time.Second
		}
		out.Pods[v.Object.Name] = podValue{Milli: v.Value.MilliValue(), At: v.Timestamp.Time, Window: window}
	}
	return out
}

func (r reader) object(ctx context.Context, namespace string, m *autoscalingv2.ObjectMetricSource) reading {
	query, err := metricQuery(m.Metric, "metricLabelSelector")
	if err != nil {
		return reading{Err: err}
	}
	gv, err := schema.ParseGroupVersion(m.DescribedObject.APIVersion)
	if err != nil {
		return reading{Err: fmt.Errorf("apiVersion of the described object: %w", err)}
	}
	mapping, err := r.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: m.DescribedObject.Kind}, gv.Version)
	if err != nil {
		return reading{Err: err}
	}
	path := []string{mapping.Resource.GroupResource().String(), m.DescribedObject.Name, m.Metric.Name}
	switch {
	case mapping.GroupVersionKind.GroupKind() == schema.GroupKind{Kind: "Namespace"}:
		path = []string{"namespaces", m.DescribedObject.Name, "metrics", m.Metric.Name}
	case mapping.Scope.Name() == meta.RESTScopeNameNamespace:
		path = append([]string{"namespaces", namespace}, path...)
	}
	var list values
	if err := r.get(ctx, suffixed(customVersions, path...), query, &list); err != nil {
		return reading{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return reading{Err: fmt.Errorf("no metrics returned from custom metrics API")}
	}
	return reading{Values: []int64{list.Items[0].Value.MilliValue()}}
}

func (r reader) external(ctx context.Context, namespace string, m autoscalingv2.MetricIdentifier) reading {
	query, err := metricQuery(m, "labelSelector")
	if err != nil {
		return reading{Err: err}
	}
	var list values
	if err := r.get(ctx, suffixed(externalVersions, "namespaces", namespace, m.Name), query, &list); err != nil {
		return reading{Err: fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return reading{Err: fmt.Errorf("no metrics returned from external metrics API")}
	}
	var out reading
	for _, v := range list.Items {
		out.Values = append(out.Values, v.Value.MilliValue())
	}
	return out
}

// get reads the first of several paths that is served.
func (r reader) get(ctx context.Context, paths []string, query url.Values, into any) error {
	var first error
	for _, path := range paths {
		req := r.api.Get().AbsPath(path).SetHeader("Accept", "application/json")
		for k, vs := range query {
			for _, v := range vs {
				req = req.Param(k, v)
			}
		}
		body, err := req.DoRaw(ctx)
		if err == nil {
			if err := json.Unmarshal(body, into); err != nil {
				return fmt.Errorf("decoding the answer of %s: %w", path, err)
			}
			return nil
		}
		if first == nil {
			first = err
		}
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return first
}

func suffixed(versions []string, path ...string) []string {
	out := make([]string, 0, len(versions))
	for _, v := range versions {
		for _, p := range path {
			v += "/" + p
		}
		out = append(out, v)
	}
	return out
}

func metricQuery(m autoscalingv2.MetricIdentifier, name string) (url.Values, error) {
	out := url.Values{}
	if m.Selector == nil {
		return out, nil
	}
	s, err := metav1.LabelSelectorAsSelector(m.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector of metric %s: %w", m.Name, err)
	}
	if !s.Empty() {
		out.Set(name, s.String())
	}
	return out, nil
}
