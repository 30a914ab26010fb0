package validate

import (
	"fmt"

	autoscaling "k8s.io/api/autoscaling/v2"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of the behavior of a HorizontalPodAutoscaler, in seconds.
const (
	maxScalingPeriod       = 1800
	maxStabilizationWindow = 3600
)

// autoscalerSpec checks the spec of a HorizontalPodAutoscaler; fewest is the
// least that minReplicas may be.
func autoscalerSpec(s *autoscaling.HorizontalPodAutoscalerSpec, fewest int32) errs {
	var all errs
	if s.MinReplicas != nil && *s.MinReplicas < fewest {
		all = append(all, field.Invalid(specPath.Child("minReplicas"), *s.MinReplicas, fmt.Sprintf("must be greater than or equal to %d",
			fewest)))
	}
	if s.MaxReplicas < 1 {
		all = append(all, field.Invalid(specPath.Child("maxReplicas"), s.MaxReplicas, "must be greater than 0"))
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		all = append(all, field.Invalid(specPath.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	all = append(all, scaleTarget(specPath.Child("scaleTargetRef"), s.ScaleTargetRef)...)
	fromOutside := false
	for i := range s.Metrics {
		all = append(all, metricSpec(specPath.Child("metrics").Index(i), &s.Metrics[i])...)
		kind := s.Metrics[i].Type
		fromOutside = fromOutside || kind == autoscaling.ObjectMetricSourceType || kind == autoscaling.ExternalMetricSourceType
	}
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !fromOutside {
		all = append(all, field.Forbidden(specPath.Child("metrics"),
			"must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := s.Behavior; b != nil {
		all = append(all, scalingRules(specPath.Child("behavior", "scaleUp"), b.ScaleUp)...)
		all = append(all, scalingRules(specPath.Child("behavior", "scaleDown"), b.ScaleDown)...)
	}
	return all
}

var isSegment = func(v string) []string { return pathvalidation.IsValidPathSegmentName(v) }

func scaleTarget(p *field.Path, r autoscaling.CrossVersionObjectReference) errs {
	return append(named(p.Child("kind"), r.Kind, isSegment), named(p.Child("name"), r.Name, isSegment)...)
}

func scalingRules(p *field.Path, r *autoscaling.HPAScalingRules) errs {
	if r == nil {
		return nil
	}
	var all errs
	window := p.Child("stabilizationWindowSeconds")
	switch w := r.StabilizationWindowSeconds; {
	case w == nil:
	case *w < 0:
		all = append(all, field.Invalid(window, *w, "must be greater than or equal to zero"))
	case *w > maxStabilizationWindow:
		all = append(all, field.Invalid(window, *w, fmt.Sprintf("must be less than or equal to %v", maxStabilizationWindow)))
	}
	all = append(all, oneOfIfSet(p.Child("selectPolicy"), r.SelectPolicy,
		autoscaling.MaxChangePolicySelect, autoscaling.MinChangePolicySelect, autoscaling.DisabledPolicySelect)...)
	if r.Tolerance != nil && r.Tolerance.Sign() < 0 {
		all = append(all, field.Invalid(p.Child("tolerance"), r.Tolerance.String(), "must be greater than or equal to 0"))
	}
	policies := p.Child("policies")
	if len(r.Policies) == 0 {
		all = append(all, field.Required(policies, "must specify at least one Policy"))
	}
	for i, policy := range r.Policies {
		at := policies.Index(i)
		all = append(all, oneOf(at.Child("type"), policy.Type, autoscaling.PodsScalingPolicy, autoscaling.PercentScalingPolicy)...)
		if policy.Value <= 0 {
			all = append(all, field.Invalid(at.Child("value"), policy.Value, "must be greater than zero"))
		}
		if policy.PeriodSeconds <= 0 {
			all = append(all, field.Invalid(at.Child("periodSeconds"), policy.PeriodSeconds, "must be greater than zero"))
		}
		if policy.PeriodSeconds > maxScalingPeriod {
			all = append(all, field.Invalid(at.Child("periodSeconds"), policy.PeriodSeconds, fmt.Sprintf("must be less than or equal to %v",
				maxScalingPeriod)))
		}
	}
	return all
}

// metricSpec wants exactly the one source that the metric's type names.
func metricSpec(p *field.Path, m *autoscaling.MetricSpec) errs {
	sources := []struct {
		kind  autoscaling.MetricSourceType
		name  string
		set   bool
		check func(*field.Path) errs
	}{
		{autoscaling.ObjectMetricSourceType, "object", m.Object != nil, func(at *field.Path) errs { return objectMetric(at, m.Object) }},
		{autoscaling.ExternalMetricSourceType, "external", m.External != nil,
			func(at *field.Path) errs { return externalMetric(at, m.External) }},
		{autoscaling.PodsMetricSourceType, "pods", m.Pods != nil, func(at *field.Path) errs { return podsMetric(at, m.Pods) }},
		{autoscaling.ResourceMetricSourceType, "resource", m.Resource != nil, func(at *field.Path) errs {
			return resourceMetric(at, string(m.Resource.Name), m.Resource.Target)
		}},
		{autoscaling.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil, func(at *field.Path) errs {
			return containerMetric(at, m.ContainerResource)
		}},
	}
	at := p.Child("type")
	all := mustBeOneOf(at, m.Type, autoscaling.ObjectMetricSourceType, autoscaling.PodsMetricSourceType,
		autoscaling.ResourceMetricSourceType,
		autoscaling.ExternalMetricSourceType, autoscaling.ContainerResourceMetricSourceType)
	set := 0
	for _, s := range sources {
		if !s.set {
			continue
		}
		if set++; set == 1 {
			all = append(all, s.check(p.Child(s.name))...)
		}
	}
	for _, s := range sources {
		switch {
		case s.kind == m.Type && !s.set:
			all = append(all, field.Required(p.Child(s.name), "must populate information for the given metric source"))
		case s.kind != m.Type && s.set && set > 1:
			all = append(all, field.Forbidden(p.Child(s.name), "must populate the given metric source only"))
		}
	}
	return all
}

func objectMetric(p *field.Path, m *autoscaling.ObjectMetricSource) errs {
	all := scaleTarget(p.Child("describedObject"), m.DescribedObject)
	all = append(all, metricName(p, m.Metric)...)
	all = append(all, metricTarget(p.Child("target"), m.Target)...)
	if m.Target.Value == nil && m.Target.AverageValue == nil {
		all = append(all, field.Required(p.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return all
}

func externalMetric(p *field.Path, m *autoscaling.ExternalMetricSource) errs {
	all := append(metricName(p, m.Metric), metricTarget(p.Child("target"), m.Target)...)
	switch one, each := m.Target.Value != nil, m.Target.AverageValue != nil; {
	case !one && !each:
		all = append(all, field.Required(p.Child("target", "averageValue"),
			"must set either a target value for metric or a per-pod target"))
	case one && each:
		all = append(all, field.Forbidden(p.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return all
}

func podsMetric(p *field.Path, m *autoscaling.PodsMetricSource) errs {
	all := append(metricName(p, m.Metric), metricTarget(p.Child("target"), m.Target)...)
	if m.Target.AverageValue == nil {
		all = append(all, field.Required(p.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return all
}

func containerMetric(p *field.Path, m *autoscaling.ContainerResourceMetricSource) errs {
	var all errs
	if m.Name != "" {
		all = append(all, containerResourceName(p.Child("name"), m.Name)...)
	}
	if m.Container == "" {
		all = append(all, field.Required(p.Child("container"), "must specify a container"))
	} else {
		all = append(all, invalid(p.Child("container"), m.Container, validation.IsDNS1123Label(m.Container))...)
	}
	return append(all, resourceMetric(p, string(m.Name), m.Target)...)
}

func resourceMetric(p *field.Path, name string, t autoscaling.MetricTarget) errs {
	var all errs
	if name == "" {
		all = append(all, field.Required(p.Child("name"), "must specify a resource name"))
	}
	all = append(all, metricTarget(p.Child("target"), t)...)
	switch share, value := t.AverageUtilization != nil, t.AverageValue != nil; {
	case !share && !value:
		all = append(all, field.Required(p.Child("target", "averageUtilization"),
			"must set either a target raw value or a target utilization"))
	case share && value:
		all = append(all, field.Forbidden(p.Child("target", "averageValue"),
			"may not set both a target raw value and a target utilization"))
	}
	return all
}

func metricName(p *field.Path, id autoscaling.MetricIdentifier) errs {
	at := p.Child("metric", "name")
	if id.Name == "" {
		return errs{field.Required(at, "must specify a metric name")}
	}
	return invalid(at, id.Name, isSegment(id.Name))
}

func metricTarget(p *field.Path, t autoscaling.MetricTarget) errs {
	var all errs
	switch t.Type {
	case autoscaling.UtilizationMetricType, autoscaling.ValueMetricType, autoscaling.AverageValueMetricType:
	default:
		if t.Type == "" {
			all = append(all, field.Required(p.Child("type"), "must specify a metric target type"))
		}
		all = append(all, field.Invalid(p.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		all = append(all, field.Invalid(p.Child("value"), t.Value, "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		all = append(all, field.Invalid(p.Child("averageValue"), t.AverageValue, "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		all = append(all, field.Invalid(p.Child("averageUtilization"), *t.AverageUtilization, "must be greater than 0"))
	}
	return all
}

func HorizontalPodAutoscaler(a *autoscaling.HorizontalPodAutoscaler) errs {
	return autoscalerSpec(&a.Spec, 1)
}

func HorizontalPodAutoscalerUpdate(changed, old *autoscaling.HorizontalPodAutoscaler) errs {
	fewest := int32(1)
	if old.Spec.MinReplicas != nil && *old.Spec.MinReplicas == 0 {
		fewest = 0 // what an earlier server let in may stay
	}
	return autoscalerSpec(&changed.Spec, fewest)
}

func HorizontalPodAutoscalerStatusUpdate(changed, _ *autoscaling.HorizontalPodAutoscaler) errs {
	return counters(nil, []part{{"currentReplicas", changed.Status.CurrentReplicas}, {"desiredReplicas", changed.Status.DesiredReplicas}})
}
