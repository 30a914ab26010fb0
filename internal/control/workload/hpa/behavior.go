package hpa

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
)

// Without a behavior, one step up at most doubles the replicas, but may always
// reach four.
const (
	stepFactor = 2
	stepFloor  = 4
)

// limit is the outcome of bounding a recommendation.
type limit struct {
	replicas        int32
	reason, message string
}

func within(replicas int32) limit {
	return limit{replicas, "DesiredWithinRange", "the desired count is within the acceptable range"}
}

func tooFew(replicas int32) limit {
	return limit{replicas, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
}

func tooMany(replicas int32) limit {
	return limit{replicas, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
}

// normalize turns what the metrics propose into what is done: stabilised over
// the window, then limited by the policies and by the bounds of the spec.
func (r *round) normalize(proposal int32) int32 {
	stable, reason, message := r.stabilize(proposal)
	if stable != proposal {
		r.condition(autoscalingv2.AbleToScale, v1.ConditionTrue, reason, message)
	} else {
		r.condition(autoscalingv2.AbleToScale, v1.ConditionTrue, "ReadyForNewScale", "recommended size matches current size")
	}
	r.out.History.recommend(proposal, r.in.Now)
	var l limit
	if r.in.HPA.Spec.Behavior == nil {
		l = plainLimit(r.in.Scale.Spec, stable, r.min, r.in.HPA.Spec.MaxReplicas)
	} else {
		l = r.policyLimit(stable)
	}
	limited := v1.ConditionTrue
	if l.replicas == stable {
		limited = v1.ConditionFalse
	}
	r.condition(autoscalingv2.ScalingLimited, limited, l.reason, l.message)
	return l.replicas
}

const (
	lowerMessage  = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	higherMessage = "recent recommendations were higher than current one, applying the highest recent recommendation"
)

// stabilize keeps the target from following every swing: on the way up the
// least recommendation of the up window counts, on the way down the greatest
// of the down window.
func (r *round) stabilize(proposal int32) (replicas int32, reason, message string) {
	var upWindow time.Duration
	downWindow := r.in.Settings.DownscaleStabilization
	if b := r.in.HPA.Spec.Behavior; b != nil {
		upWindow, downWindow = window(b.ScaleUp, upWindow), window(b.ScaleDown, downWindow)
	}
	up, down := proposal, proposal
	for _, rec := range r.out.History.Recommendations {
		age := r.in.Now.Sub(rec.At)
		if age < upWindow {
			up = min(up, rec.Replicas)
		}
		if age < downWindow {
			down = max(down, rec.Replicas)
		}
	}
	if r.in.HPA.Spec.Behavior == nil {
		return down, "ScaleDownStabilized", higherMessage
	}
	replicas = min(max(r.in.Scale.Spec, up), down)
	if proposal >= r.in.Scale.Spec {
		return replicas, "ScaleUpStabilized", lowerMessage
	}
	return replicas, "ScaleDownStabilized", higherMessage
}

func window(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
}

// plainLimit bounds a recommendation where the autoscaler names no behavior.
func plainLimit(current, desired, least, most int32) limit {
	if desired < least {
		return tooFew(least)
	}
	if step := max(stepFactor*int64(current), stepFloor); step < int64(most) {
		if int64(desired) > step {
			return limit{int32(step), "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
		}
		return within(desired)
	}
	if desired > most {
		return tooMany(most)
	}
	return within(desired)
}

// policyLimit bounds a recommendation by the policies of the behavior.
func (r *round) policyLimit(desired int32) limit {
	current, b := r.in.Scale.Spec, r.in.HPA.Spec.Behavior
	switch {
	case desired > current:
		step := max(r.scaleUpLimit(b.ScaleUp), current)
		if step < r.in.HPA.Spec.MaxReplicas {
			if desired > step {
				return limit{step, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
			}
		} else if desired > r.in.HPA.Spec.MaxReplicas {
			return tooMany(r.in.HPA.Spec.MaxReplicas)
		}
	case desired < current:
		step := min(r.scaleDownLimit(b.ScaleDown), current)
		if step > r.min {
			if desired < step {
				return limit{step, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
			}
		} else if desired < r.min {
			return tooFew(r.min)
		}
	}
	return within(desired)
}

// scaleUpLimit is the most replicas the policies allow now: each counts from
// the size at the beginning of its period.
func (r *round) scaleUpLimit(rules *autoscalingv2.HPAScalingRules) int32 {
	current := r.in.Scale.Spec
	if rules == nil || len(rules.Policies) == 0 {
		return math.MaxInt32
	}
	choose := func(a, b int32) int32 { return max(a, b) }
	if rules.SelectPolicy != nil {
		switch *rules.SelectPolicy {
		case autoscalingv2.DisabledPolicySelect:
			return current
		case autoscalingv2.MinChangePolicySelect:
			choose = func(a, b int32) int32 { return min(a, b) }
		}
	}
	var out int32
	for i, p := range rules.Policies {
		start := r.periodStart(p)
		allowed := start + float64(p.Value)
		if p.Type == autoscalingv2.PercentScalingPolicy {
			allowed = math.Ceil(start * (1 + float64(p.Value)/100))
		}
		if n := clamp(allowed); i == 0 {
			out = n
		} else {
			out = choose(out, n)
		}
	}
	return out
}

// scaleDownLimit is the fewest replicas the policies allow now.
func (r *round) scaleDownLimit(rules *autoscalingv2.HPAScalingRules) int32 {
	if rules == nil || len(rules.Policies) == 0 {
		return math.MinInt32
	}
	choose := func(a, b int32) int32 { return min(a, b) }
	if rules.SelectPolicy != nil {
		switch *rules.SelectPolicy {
		case autoscalingv2.DisabledPolicySelect:
			return r.in.Scale.Spec
		case autoscalingv2.MinChangePolicySelect:
			choose = func(a, b int32) int32 { return max(a, b) }
		}
	}
	var out int32
	for i, p := range rules.Policies {
		start := r.periodStart(p)
		allowed := start - float64(p.Value)
		if p.Type == autoscalingv2.PercentScalingPolicy {
			allowed = math.Trunc(start * (1 - float64(p.Value)/100))
		}
		if n := clamp(allowed); i == 0 {
			out = n
		} else {
			out = choose(out, n)
		}
	}
	return out
}

// periodStart is how many replicas there were when the policy's period began.
func (r *round) periodStart(p autoscalingv2.HPAScalingPolicy) float64 {
	added, taken := r.in.History.changed(time.Duration(p.PeriodSeconds)*time.Second, r.in.Now)
	return float64(r.in.Scale.Spec) - float64(added) + float64(taken)
}

// clamp keeps a count within what the API can say.
func clamp(f float64) int32 {
	switch {
	case f >= math.MaxInt32:
		return math.MaxInt32
	case f <= math.MinInt32:
		return math.MinInt32
	}
	return int32(f)
}
