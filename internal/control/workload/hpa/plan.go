// Package hpa decides how many replicas the target of a
// HorizontalPodAutoscaler should have.
//
// One round, in order; the first that decides ends it:
//
//	scale not found ──────────────► AbleToScale=False, nothing changes
//	replicas 0, not by this HPA ──► ScalingActive=False (ScalingDisabled)
//	replicas beyond max or min ───► the bound
//	each metric proposes a count; the greatest wins
//	    some unknown and less ────► ScalingActive=False, nothing changes
//	stabilise over the window ────► AbleToScale says so
//	limit by policies and bounds ─► ScalingLimited says so
package hpa

import (
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// settings are the rules for all autoscalers: upstream's flags.
type settings struct {
	// Tolerance is how far the ratio of usage to target may be from 1 before
	// anything changes: --horizontal-pod-autoscaler-tolerance.
	Tolerance float64
	// DownscaleStabilization is the window whose greatest recommendation is
	// used on the way down where the autoscaler does not say.
	DownscaleStabilization time.Duration
	// CPUInitialization is how long after its start a pod's CPU time is
	// not trusted unless it was measured after the pod became ready.
	CPUInitialization time.Duration
	// InitialReadiness is how soon after its start a pod that is not ready
	// counts as one that never was.
	InitialReadiness time.Duration
}

// DefaultSettings are upstream's.
var DefaultSettings = settings{Tolerance: 0.1, DownscaleStabilization: 5 * time.Minute, CPUInitialization: 5 * time.Minute,
	InitialReadiness: 30 * time.Second}

// targetScale is what the scale subresource of the target says.
type targetScale struct {
	// Spec and Status are the replicas wanted and there.
	Spec, Status int32
	// Selector chooses the pods, in text form.
	Selector string
}

// input is what decides over one autoscaler. The caller has read everything:
// a Reading for each metric of the spec, in its order.
type input struct {
	HPA *autoscalingv2.HorizontalPodAutoscaler
	// targetScale is nil when ScaleError says why it could not be read.
	Scale      *targetScale
	ScaleError error
	// Pods are those the selector chooses in the autoscaler's namespace.
	Pods []*v1.Pod
	// Rivals name other autoscalers whose targets choose one of the pods.
	Rivals   []string
	Readings []reading
	History  history
	Settings settings
	Now      time.Time
}

// event is one event on the autoscaler.
type event struct {
	Warning         bool
	Reason, Message string
}

// result is what to write, and because of what.
type result struct {
	Status autoscalingv2.HorizontalPodAutoscalerStatus
	Events []event
	// Rescale says that the target should get Replicas; Reason says why.
	Rescale  bool
	Replicas int32
	Reason   string
	// Err is what kept a metric from counting, if anything; the round is worth
	// a log line then, and is repeated at the usual time.
	Err     error
	History history
}

// round is one decision under way.
type round struct {
	in  input
	out result
	min int32
}

// plan decides one round. It changes nothing of its input. What it returns is
// to be done in this order: write the scale if Rescale is set, tell Rescaled
// how that went, write the status.
func plan(in input) result {
	r := &round{in: in, min: 1}
	r.out.Status = *in.HPA.Status.DeepCopy()
	r.out.History = in.History.clone()
	if in.HPA.Spec.MinReplicas != nil {
		r.min = *in.HPA.Spec.MinReplicas
	}
	generation := in.HPA.Generation
	r.out.Status.ObservedGeneration = &generation
	if in.ScaleError != nil || in.Scale == nil {
		r.warn("FailedGetScale", fmt.Sprint(in.ScaleError))
		r.condition(autoscalingv2.AbleToScale, v1.ConditionFalse, "FailedGetScale",
			fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", in.ScaleError))
		r.out.Err = in.ScaleError
		return r.out
	}
	r.condition(autoscalingv2.AbleToScale, v1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	r.out.History.begin(in.Scale.Spec, in.Now)
	r.decide()
	return r.out
}

// Rescaled is the result after the scale was written, or was not.
func (o result) Rescaled(now time.Time, current int32, err error) result {
	if !o.Rescale {
		return o
	}
	if err != nil {
		o.Events = append(o.Events, event{true, "FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", o.Replicas, o.Reason,
			err)})
		setCondition(&o.Status, autoscalingv2.AbleToScale, v1.ConditionFalse, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err), now)
		o.Status.DesiredReplicas, o.Rescale, o.Err = current, false, err
		return o
	}
	o.Events = append(o.Events, event{false, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", o.Replicas, o.Reason)})
	setCondition(&o.Status, autoscalingv2.AbleToScale, v1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", o.Replicas), now)
	o.Status.LastScaleTime = timePtr(now)
	o.History = o.History.clone()
	o.History.scaled(o.Replicas-current, now)
	return o
}

func (r *round) decide() {
	current, limit := r.in.Scale.Spec, r.in.HPA.Spec.MaxReplicas
	desired, reason := current, ""
	switch {
	case current == 0 && !r.fromZero():
		r.condition(autoscalingv2.ScalingActive, v1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		r.setReplicas(current, current, "")
		return
	case current > limit:
		desired, reason = limit, "Current number of replicas above Spec.MaxReplicas"
	case current < r.min && current != 0:
		desired, reason = r.min, "Current number of replicas below Spec.MinReplicas"
	default:
		proposal, metric, ok := r.metrics()
		if !ok {
			r.out.Status.CurrentReplicas = current
			return
		}
		switch {
		case proposal > current:
			reason = metric + " above target"
		case proposal < current:
			reason = "All metrics below target"
		}
		desired = r.normalize(proposal)
	}
	r.setReplicas(current, desired, reason)
}

// fromZero says whether a target without replicas may get some: only where
// this autoscaler took them away (KEP-2021). Someone who scales to zero by
// hand turns the autoscaler off.
func (r *round) fromZero() bool {
	for _, c := range r.in.HPA.Status.Conditions {
		if c.Type == scaledToZero {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// setReplicas writes the current and desired replicas into the outcome.
func (r *round) setReplicas(current, desired int32, reason string) {
	r.out.Status.CurrentReplicas, r.out.Status.DesiredReplicas = current, desired
	r.out.Rescale, r.out.Replicas, r.out.Reason = desired != current, desired, reason
	if desired == 0 && current != 0 {
		r.condition(scaledToZero, v1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the target to zero")
	} else if desired != 0 && r.fromZero() {
		r.condition(scaledToZero, v1.ConditionFalse, "NotScaledToZero", "the target has replicas")
	}
}

// scaledToZero remembers who scaled a target to zero.
const scaledToZero autoscalingv2.HorizontalPodAutoscalerConditionType = "ScaledToZero"

// metrics asks each metric for a count. ok is false when none can be given, or
// when what cannot be read might have asked for more than the rest does.
func (r *round) metrics() (replicas int32, metric string, ok bool) {
	spec := r.in.HPA.Spec.Metrics
	if !r.selectable() {
		return 0, "", false
	}
	r.out.Status.CurrentMetrics = nil
	var first *failure
	failed := 0
	for i := range spec {
		p, status, err := r.propose(&spec[i], r.reading(i))
		if status != nil {
			r.out.Status.CurrentMetrics = append(r.out.Status.CurrentMetrics, *status)
		}
		if err != nil {
			failed++
			if first == nil {
				first = err
			}
			r.warn(err.reason, err.err.Error())
			continue
		}
		if metric == "" || p.replicas > replicas {
			replicas, metric = p.replicas, p.metric
		}
	}
	if first != nil {
		r.out.Err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failed, len(spec), first.err)
	}
	if failed >= len(spec) || failed > 0 && replicas < r.in.Scale.Spec {
		if first != nil {
			r.condition(autoscalingv2.ScalingActive, v1.ConditionFalse, first.reason,
				fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.err))
			r.warn("FailedComputeMetricsReplicas", r.out.Err.Error())
		}
		return 0, "", false
	}
	r.condition(autoscalingv2.ScalingActive, v1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+metric)
	return replicas, metric, true
}

// reading is the i-th; a caller that read too few is told so by the metric.
func (r *round) reading(i int) reading {
	if i < len(r.in.Readings) {
		return r.in.Readings[i]
	}
	return reading{Err: fmt.Errorf("the metric was not read")}
}

// selectable checks the target's selector.
func (r *round) selectable() bool {
	fail := func(reason, event, message string) bool {
		r.warn(event, message)
		r.condition(autoscalingv2.ScalingActive, v1.ConditionFalse, reason, message)
		r.out.Err = fmt.Errorf("%s", message)
		return false
	}
	if r.in.Scale.Selector == "" {
		return fail("InvalidSelector", "SelectorRequired", "the HPA target's scale is missing a selector")
	}
	if _, err := labels.Parse(r.in.Scale.Selector); err != nil {
		return fail("InvalidSelector", "InvalidSelector",
			fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err))
	}
	if len(r.in.Rivals) > 0 {
		return fail("AmbiguousSelector", "AmbiguousSelector", fmt.Sprintf("pods by selector %s are controlled by multiple HPAs: %v",
			r.in.Scale.Selector, r.in.Rivals))
	}
	return true
}

func (r *round) warn(reason, message string) {
	r.out.Events = append(r.out.Events, event{true, reason, message})
}

func (r *round) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType, s v1.ConditionStatus, reason, message string) {
	setCondition(&r.out.Status, t, s, reason, message, r.in.Now)
}
