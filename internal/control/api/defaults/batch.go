package defaults

import (
	"math"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

func Job(j *batch.Job) {
	spec := &j.Spec
	podTemplate(&spec.Template)
	if spec.Completions == nil && spec.Parallelism == nil {
		fill(&spec.Completions, 1)
	}
	fill(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		fill(&spec.BackoffLimit, math.MaxInt32)
	}
	fill(&spec.BackoffLimit, 6)
	fill(&spec.CompletionMode, batch.NonIndexedCompletion)
	fill(&spec.Suspend, false)
	fill(&spec.ManualSelector, false)
	if spec.PodFailurePolicy != nil {
		fill(&spec.PodReplacementPolicy, batch.Failed)
		for i := range spec.PodFailurePolicy.Rules {
			conditions := spec.PodFailurePolicy.Rules[i].OnPodConditions
			for k := range conditions {
				zero(&conditions[k].Status, v1.ConditionTrue)
			}
		}
	}
	fill(&spec.PodReplacementPolicy, batch.TerminatingOrFailed)
	if len(j.Labels) == 0 && len(spec.Template.Labels) > 0 {
		j.Labels = copyMap(spec.Template.Labels)
	}
}

// CronJob leaves the job template's own fields unset: they are completed in
// each Job made from it.
func CronJob(c *batch.CronJob) {
	podTemplate(&c.Spec.JobTemplate.Spec.Template)
	zero(&c.Spec.ConcurrencyPolicy, batch.AllowConcurrent)
	fill(&c.Spec.Suspend, false)
	fill(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	fill(&c.Spec.FailedJobsHistoryLimit, 1)
}
