package autoscaling

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// horizontalPodAutoscalerV1 shows the objects of version 2 in the form of version 1.
var horizontalPodAutoscalerV1 = registry.Kind[*autoscaling.HorizontalPodAutoscaler]{
	GroupVersion: autoscalingv1.SchemeGroupVersion, Kind: "HorizontalPodAutoscaler",
	Resource: "horizontalpodautoscalers", ShortNames: []string{"hpa"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:   true,
	AddToScheme: addV1,
	Validate:    validate.HorizontalPodAutoscaler, ValidateUpdate: validate.HorizontalPodAutoscalerUpdate,
	ValidateStatusUpdate: validate.HorizontalPodAutoscalerStatusUpdate,
	Table:                table.HorizontalPodAutoscaler,
	NoWatchCache:         true,
	StoredAs:             schema.GroupResource{Group: autoscaling.GroupName, Resource: "horizontalpodautoscalers"},
	OtherVersions:        []schema.GroupVersion{autoscaling.SchemeGroupVersion},
}

// Annotations that hold, in the form of autoscaling/v1, what its fields cannot say.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

// cpuUtilization is what an autoscaler without any metric aims at, in percent.
const cpuUtilization int32 = 80

// addV1 makes autoscaling/v2 HorizontalPodAutoscaler the hub and stored form of
// both versions. Version 1 has one field for the share of CPU; everything else
// is in annotations.
func addV1(s *runtime.Scheme) error {
	s.AddTypeDefaultingFunc(&autoscalingv1.HorizontalPodAutoscaler{}, func(o any) {
		defaultV1(o.(*autoscalingv1.HorizontalPodAutoscaler))
	})
	s.AddTypeDefaultingFunc(&autoscalingv1.HorizontalPodAutoscalerList{}, func(o any) {
		items := o.(*autoscalingv1.HorizontalPodAutoscalerList).Items
		for i := range items {
			defaultV1(&items[i])
		}
	})
	if err := registry.Convert(s, autoscalerToHub, autoscalerFromHub); err != nil {
		return err
	}
	return registry.Convert(s,
		func(in *autoscalingv1.HorizontalPodAutoscalerList, out *autoscaling.HorizontalPodAutoscalerList) {
			out.ListMeta = in.ListMeta
			out.Items = registry.ConvertItems(in.Items, autoscalerToHub)
		},
		func(in *autoscaling.HorizontalPodAutoscalerList, out *autoscalingv1.HorizontalPodAutoscalerList) {
			out.ListMeta = in.ListMeta
			out.Items = registry.ConvertItems(in.Items, autoscalerFromHub)
		})
}

// defaultV1 completes version 1. Its metric is filled in by the conversion,
// which knows the metrics that are in annotations.
func defaultV1(a *autoscalingv1.HorizontalPodAutoscaler) {
	if a.Spec.MinReplicas == nil {
		a.Spec.MinReplicas = ptr.To[int32](1)
	}
}

// plainAnnotations are a copy of annotations without the four, nil if there
// were none at all.
func plainAnnotations(annotations map[string]string) map[string]string {
	if annotations == nil {
		return nil
	}
	plain := maps.Clone(annotations)
	for _, key := range []string{metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation, behaviorAnnotation} {
		delete(plain, key)
	}
	return plain
}

// autoscalerToHub ignores annotations that do not read: they are the user's text.
func autoscalerToHub(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscaling.HorizontalPodAutoscaler) {
	out.ObjectMeta = in.ObjectMeta
	out.Annotations = plainAnnotations(in.Annotations)
	out.Spec = autoscaling.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscaling.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas}
	if share := in.Spec.TargetCPUUtilizationPercentage; share != nil {
		out.Spec.Metrics = []autoscaling.MetricSpec{cpuMetric(*share)}
	}
	var others []autoscalingv1.MetricSpec
	if read(in.Annotations, metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricToHub(&others[i]))
		}
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscaling.MetricSpec{cpuMetric(cpuUtilization)}
	}
	var behavior autoscaling.HorizontalPodAutoscalerBehavior
	if read(in.Annotations, behaviorAnnotation, &behavior) {
		out.Spec.Behavior = &behavior
	}
	out.Status = autoscaling.HorizontalPodAutoscalerStatus{ObservedGeneration: in.Status.ObservedGeneration,
		LastScaleTime:   in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas}
	var current []autoscalingv1.MetricStatus
	if read(in.Annotations, currentMetricsAnnotation, &current) {
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, metricStatusToHub(&current[i]))
		}
	} else if share := in.Status.CurrentCPUUtilizationPercentage; share != nil {
		out.Status.CurrentMetrics = []autoscaling.MetricStatus{{Type: autoscaling.ResourceMetricSourceType,
			Resource: &autoscaling.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscaling.MetricValueStatus{AverageUtilization: share}}}}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if read(in.Annotations, conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, autoscaling.HorizontalPodAutoscalerCondition{
				Type: autoscaling.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
				Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
		}
	}
}

func autoscalerFromHub(in *autoscaling.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) {
	out.ObjectMeta = in.ObjectMeta
	out.Annotations = plainAnnotations(in.Annotations)
	out.Spec = autoscalingv1.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if share := cpuShare(m); share != nil && out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = share
			continue
		}
		others = append(others, metricFromHub(m))
	}
	out.Status = autoscalingv1.HorizontalPodAutoscalerStatus{ObservedGeneration: in.Status.ObservedGeneration,
		LastScaleTime:   in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		if m.Type == autoscaling.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
		// The share of CPU is there a second time, with the amount it is of.
		current = append(current, metricStatusFromHub(m))
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
	}
	write(&out.ObjectMeta.Annotations, metricsAnnotation, len(others) > 0, others)
	write(&out.ObjectMeta.Annotations, currentMetricsAnnotation, len(current) > 0, current)
	write(&out.ObjectMeta.Annotations, conditionsAnnotation, len(conditions) > 0, conditions)
	write(&out.ObjectMeta.Annotations, behaviorAnnotation, in.Spec.Behavior != nil, in.Spec.Behavior)
}

func read(annotations map[string]string, key string, into any) bool {
	text, ok := annotations[key]
	return ok && json.Unmarshal([]byte(text), into) == nil
}

func write(annotations *map[string]string, key string, there bool, value any) {
	if !there {
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		return // plain data always encodes
	}
	if *annotations == nil {
		*annotations = map[string]string{}
	}
	(*annotations)[key] = string(text)
}

func cpuMetric(share int32) autoscaling.MetricSpec {
	return autoscaling.MetricSpec{Type: autoscaling.ResourceMetricSourceType,
		Resource: &autoscaling.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscaling.MetricTarget{Type: autoscaling.UtilizationMetricType, AverageUtilization: &share}}}
}

// cpuShare is the share of CPU that a metric aims at, nil if it is another metric.
func cpuShare(m *autoscaling.MetricSpec) *int32 {
	if m.Type != autoscaling.ResourceMetricSourceType || m.Resource == nil || m.Resource.Name != corev1.ResourceCPU {
		return nil
	}
	return m.Resource.Target.AverageUtilization
}

// target is a target by the amounts that version 1 has in fields of their own.
// An amount of zero is none.
func target(value, average *resource.Quantity, share *int32) autoscaling.MetricTarget {
	t := autoscaling.MetricTarget{Value: value, AverageValue: average, AverageUtilization: share}
	switch {
	case share != nil:
		t.Type = autoscaling.UtilizationMetricType
	case average != nil:
		t.Type = autoscaling.AverageValueMetricType
	default:
		t.Type = autoscaling.ValueMetricType
	}
	return t
}

func some(q resource.Quantity) *resource.Quantity {
	if q.IsZero() {
		return nil
	}
	return &q
}

func amount(q *resource.Quantity) resource.Quantity {
	if q == nil {
		return resource.Quantity{}
	}
	return *q
}

func metricToHub(in *autoscalingv1.MetricSpec) autoscaling.MetricSpec {
	out := autoscaling.MetricSpec{Type: autoscaling.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscaling.ObjectMetricSource{DescribedObject: autoscaling.CrossVersionObjectReference(m.Target),
			Metric: autoscaling.MetricIdentifier{Name: m.MetricName, Selector: m.Selector}, Target: target(some(m.TargetValue),
				m.AverageValue, nil)}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscaling.PodsMetricSource{Metric: autoscaling.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Target: target(nil, &m.TargetAverageValue, nil)}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscaling.ResourceMetricSource{Name: m.Name, Target: target(nil, m.TargetAverageValue,
			m.TargetAverageUtilization)}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscaling.ContainerResourceMetricSource{Name: m.Name, Container: m.Container,
			Target: target(nil, m.TargetAverageValue, m.TargetAverageUtilization)}
	}
	if m := in.External; m != nil {
		out.External = &autoscaling.ExternalMetricSource{Metric: autoscaling.MetricIdentifier{Name: m.MetricName,
			Selector: m.MetricSelector},
			Target: target(m.TargetValue, m.TargetAverageValue, nil)}
	}
	return out
}

func metricFromHub(in *autoscaling.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{Target: autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName: m.Metric.Name,
			Selector:   m.Metric.Selector, TargetValue: amount(m.Target.Value), AverageValue: m.Target.AverageValue}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{MetricName: m.Metric.Name, Selector: m.Metric.Selector,
			TargetAverageValue: amount(m.Target.AverageValue)}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{Name: m.Name, TargetAverageValue: m.Target.AverageValue,
			TargetAverageUtilization: m.Target.AverageUtilization}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{Name: m.Name, Container: m.Container,
			TargetAverageValue:       m.Target.AverageValue,
			TargetAverageUtilization: m.Target.AverageUtilization}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricSource{MetricName: m.Metric.Name, MetricSelector: m.Metric.Selector,
			TargetValue:        m.Target.Value,
			TargetAverageValue: m.Target.AverageValue}
	}
	return out
}

func metricStatusToHub(in *autoscalingv1.MetricStatus) autoscaling.MetricStatus {
	out := autoscaling.MetricStatus{Type: autoscaling.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscaling.ObjectMetricStatus{DescribedObject: autoscaling.CrossVersionObjectReference(m.Target),
			Metric:  autoscaling.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current: autoscaling.MetricValueStatus{Value: some(m.CurrentValue), AverageValue: m.AverageValue}}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscaling.PodsMetricStatus{Metric: autoscaling.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current: autoscaling.MetricValueStatus{AverageValue: &m.CurrentAverageValue}}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscaling.ResourceMetricStatus{Name: m.Name,
			Current: autoscaling.MetricValueStatus{AverageValue: &m.CurrentAverageValue, AverageUtilization: m.CurrentAverageUtilization}}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscaling.ContainerResourceMetricStatus{Name: m.Name, Container: m.Container,
			Current: autoscaling.MetricValueStatus{AverageValue: &m.CurrentAverageValue, AverageUtilization: m.CurrentAverageUtilization}}
	}
	if m := in.External; m != nil {
		out.External = &autoscaling.ExternalMetricStatus{Metric: autoscaling.MetricIdentifier{Name: m.MetricName,
			Selector: m.MetricSelector},
			Current: autoscaling.MetricValueStatus{Value: some(m.CurrentValue), AverageValue: m.CurrentAverageValue}}
	}
	return out
}

func metricStatusFromHub(in *autoscaling.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{Target: autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName: m.Metric.Name,
			Selector:   m.Metric.Selector, CurrentValue: amount(m.Current.Value), AverageValue: m.Current.AverageValue}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{MetricName: m.Metric.Name, Selector: m.Metric.Selector,
			CurrentAverageValue: amount(m.Current.AverageValue)}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{Name: m.Name, CurrentAverageValue: amount(m.Current.AverageValue),
			CurrentAverageUtilization: m.Current.AverageUtilization}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{Name: m.Name, Container: m.Container,
			CurrentAverageValue: amount(m.Current.AverageValue), CurrentAverageUtilization: m.Current.AverageUtilization}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{MetricName: m.Metric.Name, MetricSelector: m.Metric.Selector,
			CurrentValue:        amount(m.Current.Value),
			CurrentAverageValue: m.Current.AverageValue}
	}
	return out
}
