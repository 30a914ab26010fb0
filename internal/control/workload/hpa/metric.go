package hpa

import (
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// reading is what was read for one metric of the spec.
type reading struct {
	// Pods are the values by pod name, for Resource, ContainerResource and Pods
	// metrics.
	Pods map[string]podValue
	// Values are those of an Object metric (one) or an External one (a series
	// each), in thousandths.
	Values []int64
	Err    error
}

// podValue is a metric of one pod.
type podValue struct {
	// Milli is the value, in thousandths of the metric's unit.
	Milli int64
	// At is the end of the time the value was measured over, Window its length.
	At     time.Time
	Window time.Duration
}

// failure is why a metric does not count; reason is that of the condition.
type failure struct {
	reason string
	err    error
}

// proposal is what one metric asks for.
type proposal struct {
	replicas int32
	metric   string
}

// outcome is a count and the usage it came from.
type outcome struct {
	replicas int32
	// average is the usage by pod, raw the whole of it, in thousandths.
	average, raw int64
	// percent is the utilisation of what was requested.
	percent int32
}

// propose asks one metric for a count. The status is set even if the count
// could not be told, where there is something to say.
func (r *round) propose(m *autoscalingv2.MetricSpec, read reading) (proposal, *autoscalingv2.MetricStatus, *failure) {
	switch {
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		o, err := r.resource(m.Resource.Name, "", m.Resource.Target, read)
		if err != nil {
			return proposal{}, nil, &failure{"FailedGetResourceMetric", err}
		}
		st := &autoscalingv2.MetricStatus{Type: m.Type, Resource: &autoscalingv2.ResourceMetricStatus{Name: m.Resource.Name,
			Current: usageOf(o, m.Resource.Target)}}
		return proposal{o.replicas, resourceTitle(m.Resource.Name, "resource", m.Resource.Target)}, st, nil
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		c := m.ContainerResource
		o, err := r.resource(c.Name, c.Container, c.Target, read)
		if err != nil {
			return proposal{}, nil, &failure{"FailedGetContainerResourceMetric", err}
		}
		st := &autoscalingv2.MetricStatus{Type: m.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: c.Name,
			Container: c.Container, Current: usageOf(o, c.Target)}}
		return proposal{o.replicas, resourceTitle(c.Name, "container resource", c.Target)}, st, nil
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		return r.podsMetric(m.Pods, read)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		return r.objectMetric(m.Object, read)
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		return r.externalMetric(m.External, read)
	}
	return proposal{}, nil, &failure{"InvalidMetricSourceType", fmt.Errorf("unknown metric source type %q", string(m.Type))}
}

func resourceTitle(name v1.ResourceName, kind string, t autoscalingv2.MetricTarget) string {
	if t.AverageUtilization != nil && t.AverageValue == nil {
		return fmt.Sprintf("%s %s utilization (percentage of request)", name, kind)
	}
	return fmt.Sprintf("%s %s", name, kind)
}

func usageOf(o outcome, t autoscalingv2.MetricTarget) autoscalingv2.MetricValueStatus {
	out := autoscalingv2.MetricValueStatus{AverageValue: resource.NewMilliQuantity(o.average, resource.DecimalSI)}
	if t.AverageValue == nil {
		out.AverageUtilization = &o.percent
	}
	return out
}

func (r *round) resource(name v1.ResourceName, container string, t autoscalingv2.MetricTarget, read reading) (outcome, error) {
	if t.AverageValue == nil && t.AverageUtilization == nil {
		return outcome{}, fmt.Errorf("invalid resource metric source: neither an average utilization target nor an average value (usage) " +
			"target was set")
	}
	unit := "usage"
	if t.AverageValue == nil {
		unit = "utilization"
	}
	var o outcome
	err := read.Err
	if err == nil {
		if t.AverageValue != nil {
			o, err = r.average(name, t.AverageValue.MilliValue(), read.Pods)
		} else {
			o, err = r.utilization(name, container, *t.AverageUtilization, read.Pods)
		}
	} else {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
	}
	if err != nil {
		return o, fmt.Errorf("failed to get %s %s: %w", name, unit, err)
	}
	return o, nil
}

func (r *round) podsMetric(m *autoscalingv2.PodsMetricSource, read reading) (proposal, *autoscalingv2.MetricStatus, *failure) {
	name := m.Metric.Name
	fail := func(err error) (proposal, *autoscalingv2.MetricStatus, *failure) {
		return proposal{}, nil, &failure{"FailedGetPodsMetric", fmt.Errorf("failed to get pods metric value: %w", err)}
	}
	if read.Err != nil {
		return fail(fmt.Errorf("unable to get metric %s: %w", name, read.Err))
	}
	if m.Target.AverageValue == nil {
		return fail(fmt.Errorf("the target of metric %s has no averageValue", name))
	}
	o, err := r.average("", m.Target.AverageValue.MilliValue(), read.Pods)
	if err != nil {
		return fail(err)
	}
	st := &autoscalingv2.MetricStatus{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{
		Metric: m.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: resource.NewMilliQuantity(o.average, resource.DecimalSI)}}}
	return proposal{o.replicas, "pods metric " + name}, st, nil
}

func (r *round) objectMetric(m *autoscalingv2.ObjectMetricSource, read reading) (proposal, *autoscalingv2.MetricStatus, *failure) {
	fail := func(err error) (proposal, *autoscalingv2.MetricStatus, *failure) {
		return proposal{}, nil, &failure{"FailedGetObjectMetric", fmt.Errorf("failed to get object metric value: %w", err)}
	}
	if read.Err != nil {
		return fail(fmt.Errorf("unable to get metric %s: %s on %s %s: %w", m.Metric.Name, m.DescribedObject.Kind, r.in.HPA.Namespace,
			m.DescribedObject.Name, read.Err))
	}
	o, value, err := r.series(m.Metric.Name, m.Target, read.Values)
	if err != nil {
		return fail(err)
	}
	st := &autoscalingv2.MetricStatus{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricStatus{
		Metric: m.Metric, DescribedObject: m.DescribedObject, Current: value}}
	return proposal{o.replicas, fmt.Sprintf("%s metric %s", m.DescribedObject.Kind, m.Metric.Name)}, st, nil
}

func (r *round) externalMetric(m *autoscalingv2.ExternalMetricSource, read reading) (proposal, *autoscalingv2.MetricStatus, *failure) {
	fail := func(err error) (proposal, *autoscalingv2.MetricStatus, *failure) {
		return proposal{}, nil, &failure{"FailedGetExternalMetric", fmt.Errorf("failed to get %s external metric: %w", m.Metric.Name, err)}
	}
	if read.Err != nil {
		return fail(fmt.Errorf("unable to get external metric %s/%s/%v: %w", r.in.HPA.Namespace, m.Metric.Name, m.Metric.Selector,
			read.Err))
	}
	o, value, err := r.series(m.Metric.Name, m.Target, read.Values)
	if err != nil {
		return fail(err)
	}
	st := &autoscalingv2.MetricStatus{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricStatus{Metric: m.Metric, Current: value}}
	return proposal{o.replicas, fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector)}, st, nil
}

// series is the count of a metric that is not of pods: the sum of its values
// against a target for the whole, or for each replica.
func (r *round) series(name string, t autoscalingv2.MetricTarget, values []int64) (outcome, autoscalingv2.MetricValueStatus, error) {
	var sum int64
	for _, v := range values {
		sum += v
	}
	var shown autoscalingv2.MetricValueStatus
	switch {
	case t.AverageValue != nil:
		o := outcome{replicas: r.in.Scale.Status, raw: sum, average: sum}
		target, there := float64(t.AverageValue.MilliValue()), float64(r.in.Scale.Status)
		if !r.tolerated(float64(sum) / (target * there)) {
			o.replicas = clamp(math.Ceil(float64(sum) / target))
		}
		if there > 0 {
			o.average = int64(math.Ceil(float64(sum) / there))
		}
		shown.AverageValue = resource.NewMilliQuantity(o.average, resource.DecimalSI)
		return o, shown, nil
	case t.Value != nil:
		o := outcome{replicas: r.in.Scale.Spec, raw: sum}
		ratio := float64(sum) / float64(t.Value.MilliValue())
		switch {
		case r.in.Scale.Spec == 0:
			o.replicas = clamp(math.Ceil(ratio))
		case !r.tolerated(ratio):
			o.replicas = clamp(math.Ceil(ratio * float64(readyPods(r.in.Pods))))
		}
		shown.Value = resource.NewMilliQuantity(sum, resource.DecimalSI)
		return o, shown, nil
	}
	return outcome{}, shown, fmt.Errorf("the target of metric %s has neither a value nor an averageValue", name)
}

// tolerated says whether a ratio of usage to target is near enough to 1 for
// nothing to change. Each direction may have a tolerance of its own
// (KEP-4951).
func (r *round) tolerated(ratio float64) bool {
	up, down := r.in.Settings.Tolerance, r.in.Settings.Tolerance
	if b := r.in.HPA.Spec.Behavior; b != nil {
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
	}
	return 1-down <= ratio && ratio <= 1+up
}
