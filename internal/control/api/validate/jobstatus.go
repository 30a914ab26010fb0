package validate

import (
	"fmt"
	"slices"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// JobStatusUpdate checks what a job's controller tells: since jobs can have
// controllers of others (managedBy), clients rely on these rules (KEP-4368). A
// status that breaks one already may go on breaking it.
func JobStatusUpdate(changed, old *batch.Job) errs {
	s := &changed.Status
	all := counters(nil, []part{{"active", s.Active}, {"succeeded", s.Succeeded}, {"failed", s.Failed}, {"ready", deref(s.Ready)},
		{"terminating", deref(s.Terminating)}})
	all = append(all, added(jobStatus(changed), jobStatus(old))...)
	return append(all, jobProgress(changed, old)...)
}

// added are the errors that before does not have.
func added(now, before errs) errs {
	return slices.DeleteFunc(now, func(e *field.Error) bool {
		return slices.ContainsFunc(before, func(b *field.Error) bool { return b.Field == e.Field && b.Detail == e.Detail })
	})
}

func holds(j *batch.Job, kind batch.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batch.JobCondition) bool {
		return c.Type == kind && c.Status == v1.ConditionTrue
	})
}

// jobStatus checks that the parts of a status agree.
func jobStatus(j *batch.Job) errs {
	all := jobConditions(j)
	all = append(all, jobTimes(j)...)
	all = append(all, uncounted(field.NewPath("status", "uncountedTerminatedPods"), j.Status.UncountedTerminatedPods)...)
	all = append(all, jobIndexes(j)...)
	s, p := &j.Status, field.NewPath("status")
	if s.Ready != nil && *s.Ready > s.Active {
		all = append(all, field.Invalid(p.Child("ready"), *s.Ready, "cannot set more ready pods than active"))
	}
	if !holds(j, batch.JobComplete) && !holds(j, batch.JobFailed) {
		return all
	}
	if s.Active > 0 {
		all = append(all, field.Invalid(p.Child("active"), s.Active, "active>0 is invalid for finished job"))
	}
	if deref(s.Terminating) > 0 {
		all = append(all, field.Invalid(p.Child("terminating"), *s.Terminating, "terminating>0 is invalid for finished job"))
	}
	if u := s.UncountedTerminatedPods; u != nil && len(u.Failed)+len(u.Succeeded) > 0 {
		all = append(all, field.Invalid(p.Child("uncountedTerminatedPods"), u,
			"uncountedTerminatedPods needs to be empty for finished job"))
	}
	return all
}

// jobConditions checks which conditions go together.
func jobConditions(j *batch.Job) errs {
	at := field.NewPath("status", "conditions")
	complete, failed := holds(j, batch.JobComplete), holds(j, batch.JobFailed)
	target, met := holds(j, batch.JobFailureTarget), holds(j, batch.JobSuccessCriteriaMet)
	var all errs
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{complete && failed, "cannot set Complete=True and Failed=true conditions"},
		{complete && target, "cannot set Complete=True and FailureTarget=true conditions"},
		{failed && !target, "cannot set Failed=True condition without the FailureTarget=true condition"},
		{complete && !met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		{met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"},
		{met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"},
	} {
		if rule.broken {
			all = append(all, field.Invalid(at, field.OmitValueType{}, rule.says))
		}
	}
	return all
}

func jobTimes(j *batch.Job) errs {
	s, p := &j.Status, field.NewPath("status")
	complete := holds(j, batch.JobComplete)
	var all errs
	switch {
	case s.CompletionTime != nil && !complete:
		all = append(all, field.Invalid(p.Child("completionTime"), s.CompletionTime,
			"cannot set completionTime when there is no Complete=True condition"))
	case s.CompletionTime == nil && complete:
		all = append(all, field.Required(p.Child("completionTime"), "completionTime is required for Complete jobs"))
	}
	if s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		all = append(all, field.Invalid(p.Child("completionTime"), s.CompletionTime, "completionTime cannot be set before startTime"))
	}
	// A suspended job that wants no completions is complete without ever having started.
	nothingToDo := deref(j.Spec.Suspend) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	if s.StartTime == nil && (complete || holds(j, batch.JobFailed)) && !nothingToDo {
		all = append(all, field.Required(p.Child("startTime"), "startTime is required for finished job"))
	}
	return all
}

// uncounted wants each pod whose end is not counted yet once.
func uncounted(p *field.Path, u *batch.UncountedTerminatedPods) errs {
	if u == nil {
		return nil
	}
	var all errs
	seen := unique[types.UID]{}
	for _, list := range []struct {
		name string
		uids []types.UID
	}{{"succeeded", u.Succeeded}, {"failed", u.Failed}} {
		for i, uid := range list.uids {
			at := p.Child(list.name).Index(i)
			if uid == "" {
				all = append(all, field.Invalid(at, uid, "must not be empty"))
				continue
			}
			all = append(all, seen.add(at, uid)...)
		}
	}
	return all
}

// jobIndexes wants lists of indexes that the job has, each in one of them.
func jobIndexes(j *batch.Job) errs {
	s, p := &j.Status, field.NewPath("status")
	var all errs
	if s.CompletedIndexes != "" && deref(j.Spec.CompletionMode) != batch.IndexedCompletion {
		all = append(all, field.Invalid(p.Child("completedIndexes"), s.CompletedIndexes,
			"cannot set non-empty completedIndexes when non-indexed completion mode"))
	}
	if s.FailedIndexes != nil && j.Spec.BackoffLimitPerIndex == nil {
		all = append(all, field.Invalid(p.Child("failedIndexes"), *s.FailedIndexes,
			"cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
	}
	if j.Spec.Completions == nil {
		return all
	}
	completed, err := readIndexes(s.CompletedIndexes, *j.Spec.Completions)
	if err != nil {
		all = append(all, field.Invalid(p.Child("completedIndexes"), s.CompletedIndexes, "error parsing completedIndexes: "+err.Error()))
	}
	failed, err := readIndexes(deref(s.FailedIndexes), *j.Spec.Completions)
	if err != nil && j.Spec.BackoffLimitPerIndex != nil {
		all = append(all, field.Invalid(p.Child("failedIndexes"), *s.FailedIndexes, "error parsing failedIndexes: "+err.Error()))
	}
	for _, f := range failed {
		if slices.ContainsFunc(completed, func(c indexRange) bool { return f.first <= c.last && c.first <= f.last }) {
			return append(all, field.Invalid(p.Child("failedIndexes"), *s.FailedIndexes, "failedIndexes and completedIndexes overlap"))
		}
	}
	return all
}

// readIndexes is what an empty list says too: none.
func readIndexes(text string, completions int32) ([]indexRange, error) {
	if text == "" {
		return nil, nil
	}
	return indexRanges(text, completions)
}

// jobProgress wants what is counted and done to stay so.
func jobProgress(changed, old *batch.Job) errs {
	s, was, p := &changed.Status, &old.Status, field.NewPath("status")
	var all errs
	for _, kind := range []batch.JobConditionType{batch.JobFailed, batch.JobComplete, batch.JobFailureTarget} {
		if holds(old, kind) && !holds(changed, kind) {
			all = append(all, field.Invalid(p.Child("conditions"), field.OmitValueType{},
				fmt.Sprintf("cannot disable the terminal %s=True condition", kind)))
		}
	}
	if holds(old, batch.JobSuccessCriteriaMet) && !holds(changed, batch.JobSuccessCriteriaMet) {
		all = append(all, field.Invalid(p.Child("conditions"), field.OmitValueType{},
			"cannot disable the SuccessCriteriaMet=True condition"))
	}
	if s.Failed < was.Failed {
		all = append(all, field.Invalid(p.Child("failed"), s.Failed, "cannot decrease the failed counter"))
	}
	// An elastic indexed job may give completed indexes up.
	if s.Succeeded < was.Succeeded && deref(changed.Spec.CompletionMode) != batch.IndexedCompletion {
		all = append(all, field.Invalid(p.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter"))
	}
	if s.CompletionTime != nil && was.CompletionTime != nil && !s.CompletionTime.Equal(was.CompletionTime) {
		all = append(all, field.Invalid(p.Child("completionTime"), s.CompletionTime, "completionTime cannot be mutated"))
	}
	if was.StartTime != nil && !was.StartTime.Equal(s.StartTime) && !deref(changed.Spec.Suspend) {
		all = append(all, field.Required(p.Child("startTime"), "startTime cannot be removed for unsuspended job"))
	}
	return all
}
