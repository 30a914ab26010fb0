package autoscaling

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// versions knows both versions and converts between them.
func versions(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, addV1} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Version 1 carries all of an autoscaler: what has no field is in annotations,
// which are the server's and not stored.
func TestAutoscalersConvertWithoutLoss(t *testing.T) {
	s := versions(t)
	q := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	up := autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"note": "x"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
			MinReplicas:    ptr.To[int32](2), MaxReplicas: 9,
			Metrics: []autoscalingv2.MetricSpec{cpuMetric(60),
				{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceMemory,
					Target: target(nil, q("1Gi"), nil)}},
				{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
					DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "s"},
					Metric: autoscalingv2.MetricIdentifier{Name: "hits",
						Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
					Target: target(q("10k"), nil, nil)}},
				{Type: autoscalingv2.PodsMetricSourceType,
					Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "p"},
						Target: target(nil, q("7"), nil)}},
				{Type: autoscalingv2.ExternalMetricSourceType,
					External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "e"},
						Target: target(nil, q("5"), nil)}},
				{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
					Name: corev1.ResourceCPU, Container: "c", Target: target(nil, nil, ptr.To[int32](50))}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{
				StabilizationWindowSeconds: ptr.To[int32](5)}}},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 3, DesiredReplicas: 4, ObservedGeneration: ptr.To[int64](1),
			CurrentMetrics: []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricStatus{
					Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](70),
						AverageValue: q("700m")}}}},
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionTrue,
				Reason: "r"}}}}
	before := up.DeepCopy()
	var down autoscalingv1.HorizontalPodAutoscaler
	if err := s.Convert(&up, &down, nil); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(&up, before) {
		t.Error("the conversion changed its source")
	}
	if *down.Spec.TargetCPUUtilizationPercentage != 60 || *down.Status.CurrentCPUUtilizationPercentage != 70 || len(down.Annotations) != 5 {
		t.Errorf("as version 1: %+v", down)
	}
	var back autoscalingv2.HorizontalPodAutoscaler
	if err := s.Convert(&down, &back, nil); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(up, back) {
		t.Errorf("came back as\n%+v\nwas\n%+v", back, up)
	}
}

// An autoscaler of version 1 without a metric aims at 80 % of CPU; an
// annotation that does not read is dropped.
func TestPlainAutoscalerOfVersion1(t *testing.T) {
	in := autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metricsAnnotation: "{"}}}
	var out autoscalingv2.HorizontalPodAutoscaler
	if err := versions(t).Convert(&in, &out, nil); err != nil {
		t.Fatal(err)
	}
	if len(out.Spec.Metrics) != 1 || *cpuShare(&out.Spec.Metrics[0]) != 80 || len(out.Annotations) != 0 {
		t.Errorf("converted to %+v", out)
	}
	for key := range in.Annotations {
		if !strings.HasPrefix(key, "autoscaling.alpha.kubernetes.io/") {
			t.Errorf("annotation %s", key)
		}
	}
}
