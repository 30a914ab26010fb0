package table

import (
	"fmt"
	"strings"
	"time"

	autoscaling "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// shownMetrics is how many metrics of an autoscaler have a place in its row.
const shownMetrics = 2

var HorizontalPodAutoscaler = of(func(now time.Time, a *autoscaling.HorizontalPodAutoscaler) []any {
	least := unset
	if a.Spec.MinReplicas != nil {
		least = fmt.Sprint(*a.Spec.MinReplicas)
	}
	return []any{a.Name, a.Spec.ScaleTargetRef.Kind + "/" + a.Spec.ScaleTargetRef.Name, metrics(a), least,
		int64(a.Spec.MaxReplicas), int64(a.Status.CurrentReplicas), created(now, a)}
}, nameColumn,
	text("Reference", autoscaling.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"]),
	text("Targets", autoscaling.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"]),
	text("MinPods", autoscaling.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"]),
	text("MaxPods", autoscaling.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"]),
	text("Replicas", autoscaling.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
	ageColumn)

// metrics shows what is and what should be of the first metrics.
func metrics(a *autoscaling.HorizontalPodAutoscaler) string {
	if len(a.Spec.Metrics) == 0 {
		return none
	}
	var out []string
	for i, m := range a.Spec.Metrics[:min(len(a.Spec.Metrics), shownMetrics)] {
		var is autoscaling.MetricStatus
		if i < len(a.Status.CurrentMetrics) {
			is = a.Status.CurrentMetrics[i]
		}
		out = append(out, metric(m, is))
	}
	if more := len(a.Spec.Metrics) - shownMetrics; more > 0 {
		return fmt.Sprintf("%s + %d more...", strings.Join(out, ", "), more)
	}
	return strings.Join(out, ", ")
}

// metric shows one of them: "cpu: 12%/50%", "10/20 (avg)".
func metric(want autoscaling.MetricSpec, is autoscaling.MetricStatus) string {
	have := autoscaling.MetricValueStatus{}
	switch {
	case want.Resource != nil:
		if is.Resource != nil {
			have = is.Resource.Current
		}
		return ofResource(want.Resource.Name, want.Resource.Target, have)
	case want.ContainerResource != nil:
		if is.ContainerResource != nil {
			have = is.ContainerResource.Current
		}
		return ofResource(want.ContainerResource.Name, want.ContainerResource.Target, have)
	case want.Pods != nil:
		if is.Pods != nil {
			have = is.Pods.Current
		}
		return formatQuantity(have.AverageValue) + "/" + formatQuantity(want.Pods.Target.AverageValue)
	case want.Object != nil:
		if is.Object != nil {
			have = is.Object.Current
		}
		return valueOrAverage(want.Object.Target, have)
	case want.External != nil:
		if is.External != nil {
			have = is.External.Current
		}
		return valueOrAverage(want.External.Target, have)
	}
	return unknown
}

func ofResource(name v1.ResourceName, want autoscaling.MetricTarget, have autoscaling.MetricValueStatus) string {
	if want.AverageValue != nil {
		return fmt.Sprintf("%s: %s/%s", name, formatQuantity(have.AverageValue), formatQuantity(want.AverageValue))
	}
	return fmt.Sprintf("%s: %s/%s", name, percent(have.AverageUtilization), percent(want.AverageUtilization))
}

// valueOrAverage formats a target that is either an average over pods or a value.
func valueOrAverage(want autoscaling.MetricTarget, have autoscaling.MetricValueStatus) string {
	if want.AverageValue != nil {
		return fmt.Sprintf("%s/%s (avg)", formatQuantity(have.AverageValue), formatQuantity(want.AverageValue))
	}
	return formatQuantity(have.Value) + "/" + formatQuantity(want.Value)
}

// formatQuantity formats a quantity, or <unknown> for nil.
func formatQuantity(q *resource.Quantity) string {
	if q == nil {
		return unknown
	}
	return q.String()
}

func percent(n *int32) string {
	if n == nil {
		return unknown
	}
	return fmt.Sprintf("%d%%", *n)
}
