package defaults

import (
	autoscaling "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
)

// What a HorizontalPodAutoscaler gets when it does not say: the share of
// requested CPU it aims at, in percent, and the pace of scaling, in percent or
// pods each period of seconds.
const (
	cpuUtilization int32 = 80
	scalingPeriod  int32 = 15
	scalingPercent int32 = 100
	scalingPods    int32 = 4
)

func HorizontalPodAutoscaler(a *autoscaling.HorizontalPodAutoscaler) {
	fill(&a.Spec.MinReplicas, 1)
	if len(a.Spec.Metrics) == 0 {
		share := cpuUtilization
		a.Spec.Metrics = []autoscaling.MetricSpec{{Type: autoscaling.ResourceMetricSourceType, Resource: &autoscaling.ResourceMetricSource{
			Name: v1.ResourceCPU, Target: autoscaling.MetricTarget{Type: autoscaling.UtilizationMetricType, AverageUtilization: &share}}}}
	}
	b := a.Spec.Behavior
	if b == nil {
		return
	}
	percent := autoscaling.HPAScalingPolicy{Type: autoscaling.PercentScalingPolicy, Value: scalingPercent, PeriodSeconds: scalingPeriod}
	fill(&b.ScaleUp, autoscaling.HPAScalingRules{})
	fill(&b.ScaleUp.StabilizationWindowSeconds, 0)
	scalingRules(b.ScaleUp, autoscaling.HPAScalingPolicy{Type: autoscaling.PodsScalingPolicy, Value: scalingPods,
		PeriodSeconds: scalingPeriod}, percent)
	// How long scaling down waits is up to the controller, so its window stays unset.
	fill(&b.ScaleDown, autoscaling.HPAScalingRules{})
	scalingRules(b.ScaleDown, percent)
}

// scalingRules completes rules with policies, unless the rules list their own,
// be it an empty list.
func scalingRules(r *autoscaling.HPAScalingRules, policies ...autoscaling.HPAScalingPolicy) {
	fill(&r.SelectPolicy, autoscaling.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
}
