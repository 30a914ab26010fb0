package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // time zones must not depend on what the host has installed

	"github.com/robfig/cron/v3"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds on indexed jobs, whose finished indexes must fit into the status.
const (
	maxIndexedParallelism = 100000
	maxFailedIndexes      = 100000
	manyCompletions       = 100000 // above it, fewer may fail and run at a time
	manyIndexes           = 10000
	maxJobRules           = 20
	maxCronJobName        = 52 // a Job's name adds eleven characters, and a pod's label holds 63
	maxManagedBy          = 63
)

func Job(j *batch.Job) errs {
	all := append(generatedSelector(j), jobWithManualSelector(j)...)
	if n := deref(j.Spec.Completions); deref(j.Spec.CompletionMode) == batch.IndexedCompletion && n > 0 {
		// The pod of the last index is the one with the longest name.
		if last := fmt.Sprintf("%s-%d", j.Name, n-1); len(validation.IsDNS1123Label(last)) > 0 {
			all = append(all, field.Invalid(field.NewPath("metadata", "name"), j.Name,
				"will not able to create pod with invalid DNS label: "+last))
		}
	}
	return all
}

// generatedSelector wants the selector and the labels that the API server
// generated to be this job's own, unless the user manages the selector: a job
// that selects another's pods counts them and deletes them.
func generatedSelector(j *batch.Job) errs {
	if deref(j.Spec.ManualSelector) || j.Spec.Selector == nil {
		return nil
	}
	var all errs
	if j.UID == "" {
		all = append(all, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	want := machinery.Set{"controller-uid": string(j.UID), "job-name": j.Name, batch.ControllerUidLabel: string(j.UID),
		batch.JobNameLabel: j.Name}
	at := specPath.Child("template", "metadata", "labels")
	for _, key := range []string{"controller-uid", "job-name", batch.ControllerUidLabel, batch.JobNameLabel} {
		switch value, ok := j.Spec.Template.Labels[key]; {
		case !ok:
			all = append(all, field.Required(at.Key(key), fmt.Sprintf("must be '%s'", want[key])))
		case value != want[key]:
			all = append(all, field.Invalid(at.Key(key), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", want[key])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(want) {
		all = append(all, field.Invalid(specPath.Child("selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return all
}

// jobWithManualSelector validates a job whose selector the user wrote.
func jobWithManualSelector(j *batch.Job) errs {
	all := jobSpec(specPath, &j.Spec)
	at := specPath.Child("selector")
	if j.Spec.Selector == nil {
		return append(all, field.Required(at, ""))
	}
	all = append(all, selector(at, j.Spec.Selector)...)
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(machinery.Set(j.Spec.Template.Labels)) {
		all = append(all, field.Invalid(specPath.Child("template", "metadata", "labels"), j.Spec.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	return all
}

// jobSpec checks what a Job and the template inside a CronJob share.
func jobSpec(p *field.Path, s *batch.JobSpec) errs {
	var all errs
	for _, n := range []struct {
		name  string
		value *int32
	}{{"parallelism", s.Parallelism}, {"completions", s.Completions}, {"backoffLimit", s.BackoffLimit},
		{"ttlSecondsAfterFinished", s.TTLSecondsAfterFinished},
		{"backoffLimitPerIndex", s.BackoffLimitPerIndex}, {"maxFailedIndexes", s.MaxFailedIndexes}} {
		all = append(all, notNegativeIfSet(p.Child(n.name), n.value)...)
	}
	all = append(all, notNegativeIfSet(p.Child("activeDeadlineSeconds"), s.ActiveDeadlineSeconds)...)
	all = append(all, oneOfIfSet(p.Child("completionMode"), s.CompletionMode, batch.NonIndexedCompletion, batch.IndexedCompletion)...)
	if indexed := deref(s.CompletionMode) == batch.IndexedCompletion; indexed {
		if s.Completions == nil {
			all = append(all, field.Required(p.Child("completions"), fmt.Sprintf("when completion mode is %s", batch.IndexedCompletion)))
		}
		if deref(s.Parallelism) > maxIndexedParallelism {
			all = append(all, field.Invalid(p.Child("parallelism"), *s.Parallelism,
				fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism, batch.IndexedCompletion)))
		}
		all = append(all, indexLimits(p, s)...)
	} else {
		if s.BackoffLimitPerIndex != nil {
			all = append(all, field.Invalid(p.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if s.MaxFailedIndexes != nil {
			all = append(all, field.Invalid(p.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
		}
		if s.SuccessPolicy != nil {
			all = append(all, field.Invalid(p.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode"))
		}
	}
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		all = append(all, field.Required(p.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if m := s.ManagedBy; m != nil {
		all = append(all, validation.IsDomainPrefixedPath(p.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			all = append(all, field.TooLong(p.Child("managedBy"), "", maxManagedBy))
		}
	}
	all = append(all, podTemplate(p.Child("template"), &s.Template)...)
	all = append(all, jobRestarts(p, s)...)
	if s.PodFailurePolicy != nil {
		all = append(all, failurePolicy(p.Child("podFailurePolicy"), s)...)
	}
	if s.SuccessPolicy != nil {
		all = append(all, successPolicy(p.Child("successPolicy"), s)...)
	}
	return all
}

// indexLimits keeps the list of failed indexes small enough for the status.
func indexLimits(p *field.Path, s *batch.JobSpec) errs {
	var all errs
	most, at := s.MaxFailedIndexes, p.Child("maxFailedIndexes")
	if most != nil && s.Completions != nil && *most > *s.Completions {
		all = append(all, field.Invalid(at, *most, "must be less than or equal to completions"))
	}
	if most != nil && *most > maxFailedIndexes {
		all = append(all, field.Invalid(at, *most, fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes)))
	}
	if deref(s.Completions) <= manyCompletions || s.BackoffLimitPerIndex == nil {
		return all
	}
	const why = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if most == nil {
		all = append(all, field.Required(at, fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
	} else if *most > manyIndexes {
		all = append(all, field.Invalid(at, *most, fmt.Sprintf(why, manyIndexes, manyCompletions)))
	}
	if deref(s.Parallelism) > manyIndexes {
		all = append(all, field.Invalid(p.Child("parallelism"), *s.Parallelism, fmt.Sprintf(why, manyIndexes, manyCompletions)))
	}
	return all
}

func jobRestarts(p *field.Path, s *batch.JobSpec) errs {
	at, policy := p.Child("template", "spec", "restartPolicy"), s.Template.Spec.RestartPolicy
	var all errs
	switch policy {
	case v1.RestartPolicyAlways, "":
		all = append(all, field.Required(at, fmt.Sprintf("valid values: %q, %q", v1.RestartPolicyOnFailure, v1.RestartPolicyNever)))
	case v1.RestartPolicyNever:
	case v1.RestartPolicyOnFailure:
		if s.PodFailurePolicy != nil {
			all = append(all, field.Invalid(at, policy, fmt.Sprintf("only %q is supported when podFailurePolicy is specified",
				v1.RestartPolicyNever)))
		}
	default:
		all = append(all, field.NotSupported(at, policy, []v1.RestartPolicy{v1.RestartPolicyOnFailure, v1.RestartPolicyNever}))
	}
	if s.PodFailurePolicy != nil {
		return append(all, oneOfIfSet(p.Child("podReplacementPolicy"), s.PodReplacementPolicy, batch.Failed)...)
	}
	return append(all, oneOfIfSet(p.Child("podReplacementPolicy"), s.PodReplacementPolicy, batch.Failed, batch.TerminatingOrFailed)...)
}

func failurePolicy(p *field.Path, s *batch.JobSpec) errs {
	rules := p.Child("rules")
	var all errs
	if n := len(s.PodFailurePolicy.Rules); n > maxJobRules {
		all = append(all, field.TooMany(rules, n, maxJobRules))
	}
	names := map[string]bool{}
	for i := range s.Template.Spec.Containers {
		names[s.Template.Spec.Containers[i].Name] = true
	}
	for i := range s.Template.Spec.InitContainers {
		names[s.Template.Spec.InitContainers[i].Name] = true
	}
	for i := range s.PodFailurePolicy.Rules {
		at, r := rules.Index(i), &s.PodFailurePolicy.Rules[i]
		all = append(all, mustBeOneOf(at.Child("action"), r.Action, batch.PodFailurePolicyActionCount,
			batch.PodFailurePolicyActionFailIndex, batch.PodFailurePolicyActionFailJob, batch.PodFailurePolicyActionIgnore)...)
		if r.Action == batch.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			all = append(all, field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			all = append(all, field.Invalid(at, *r, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			all = append(all, field.Invalid(at, *r, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
		if r.OnExitCodes != nil {
			all = append(all, exitCodes(at.Child("onExitCodes"), r.OnExitCodes, names)...)
		}
		if n := len(r.OnPodConditions); n > maxJobRules {
			all = append(all, field.TooMany(at.Child("onPodConditions"), n, maxJobRules))
		}
		for k, c := range r.OnPodConditions {
			one := at.Child("onPodConditions").Index(k)
			all = append(all, invalid(one.Child("type"), string(c.Type), validation.IsQualifiedName(string(c.Type)))...)
			all = append(all, mustBeOneOf(one.Child("status"), c.Status, v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown)...)
		}
	}
	return all
}

func exitCodes(p *field.Path, r *batch.PodFailurePolicyOnExitCodesRequirement, names map[string]bool) errs {
	all := mustBeOneOf(p.Child("operator"), r.Operator, batch.PodFailurePolicyOnExitCodesOpIn, batch.PodFailurePolicyOnExitCodesOpNotIn)
	if r.ContainerName != nil && !names[*r.ContainerName] {
		all = append(all, field.Invalid(p.Child("containerName"), *r.ContainerName,
			"must be one of the container or initContainer names in the pod template"))
	}
	at := p.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		all = append(all, field.Invalid(at, r.Values, "at least one value is required"))
	case n > 255:
		all = append(all, field.TooMany(at, n, 255))
	}
	seen := unique[int32]{}
	for i, code := range r.Values {
		if code == 0 && r.Operator == batch.PodFailurePolicyOnExitCodesOpIn {
			all = append(all, field.Invalid(at.Index(i), code, "must not be 0 for the In operator"))
		}
		all = append(all, seen.add(at.Index(i), code)...)
	}
	if !slices.IsSorted(r.Values) {
		all = append(all, field.Invalid(at, r.Values, "must be ordered"))
	}
	return all
}

func successPolicy(p *field.Path, s *batch.JobSpec) errs {
	rules := p.Child("rules")
	if len(s.SuccessPolicy.Rules) == 0 {
		return errs{field.Required(rules, "at least one rule must be specified when the successPolicy is specified")}
	}
	var all errs
	if n := len(s.SuccessPolicy.Rules); n > maxJobRules {
		all = append(all, field.TooMany(rules, n, maxJobRules))
	}
	for i, r := range s.SuccessPolicy.Rules {
		at := rules.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			all = append(all, field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
			continue
		}
		total := deref(s.Completions)
		if r.SucceededIndexes != nil {
			count, err := countIndexes(*r.SucceededIndexes, deref(s.Completions))
			if err != nil {
				all = append(all, field.Invalid(at.Child("succeededIndexes"), *r.SucceededIndexes,
					fmt.Sprintf("error parsing succeededIndexes: %s", err)))
			} else {
				total = count
			}
		}
		if r.SucceededCount != nil {
			all = append(all, positive(at.Child("succeededCount"), *r.SucceededCount)...)
			if *r.SucceededCount > total {
				all = append(all, field.Invalid(at.Child("succeededCount"), *r.SucceededCount,
					fmt.Sprintf("must be less than or equal to %d (the number of indexes)", total)))
			}
		}
	}
	return all
}

// indexRange are the indexes from first to last.
type indexRange struct{ first, last int64 }

// countIndexes reads a list like "0,3-5,7" of indexes below completions, in
// order and without overlap, and says how many they are.
func countIndexes(text string, completions int32) (int32, error) {
	ranges, err := indexRanges(text, completions)
	var count int32
	for _, r := range ranges {
		count += int32(r.last - r.first + 1)
	}
	return count, err
}

func indexRanges(text string, completions int32) ([]indexRange, error) {
	var all []indexRange
	last := int64(-1)
	for _, interval := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(interval, "-")
		first, err := strconv.ParseInt(low, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("cannot convert string to integer for index: %q", low)
		}
		end := first
		if isRange {
			if end, err = strconv.ParseInt(high, 10, 32); err != nil {
				return nil, fmt.Errorf("cannot convert string to integer for index: %q", high)
			}
		}
		if first <= last || end < first {
			return nil, fmt.Errorf("non-increasing order in %q", interval)
		}
		if end >= int64(completions) {
			return nil, fmt.Errorf("too large index: %q", interval)
		}
		all = append(all, indexRange{first, end})
		last = end
	}
	return all, nil
}

func JobUpdate(changed, old *batch.Job) errs {
	all := jobWithManualSelector(changed)
	now, before := &changed.Spec, &old.Spec
	elastic := deref(before.CompletionMode) == batch.IndexedCompletion && now.Completions != nil && now.Parallelism != nil &&
		*now.Completions == *now.Parallelism
	if !elastic {
		all = append(all, immutable(specPath.Child("completions"), now.Completions, before.Completions)...)
	}
	all = append(all, immutable(specPath.Child("selector"), now.Selector, before.Selector)...)
	all = append(all, immutable(specPath.Child("template"), placed(now, changed, old), before.Template)...)
	all = append(all, immutable(specPath.Child("completionMode"), now.CompletionMode, before.CompletionMode)...)
	all = append(all, immutable(specPath.Child("podFailurePolicy"), now.PodFailurePolicy, before.PodFailurePolicy)...)
	all = append(all, immutable(specPath.Child("backoffLimitPerIndex"), now.BackoffLimitPerIndex, before.BackoffLimitPerIndex)...)
	all = append(all, immutable(specPath.Child("managedBy"), now.ManagedBy, before.ManagedBy)...)
	return append(all, immutable(specPath.Child("successPolicy"), now.SuccessPolicy, before.SuccessPolicy)...)
}

// idle says that a job is suspended and none of its pods run any more.
func idle(j *batch.Job) bool {
	stopped := slices.ContainsFunc(j.Status.Conditions, func(c batch.JobCondition) bool {
		return c.Type == batch.JobSuspended && c.Status == v1.ConditionTrue
	})
	return deref(j.Spec.Suspend) && (j.Status.StartTime == nil || stopped) && j.Status.Active == 0
}

// placed is the new template with that of the old one put back which may change
// while no pod of the job runs: where pods run and what they get there (queueing
// controllers decide both before they resume a job, KEP-2926 and KEP-5440).
func placed(now *batch.JobSpec, changed, old *batch.Job) v1.PodTemplateSpec {
	if !idle(old) {
		return now.Template
	}
	before := &old.Spec.Template
	rest := *now.Template.DeepCopy()
	if deref(changed.Spec.Suspend) || deref(old.Spec.Suspend) {
		sameResources(rest.Spec.Containers, before.Spec.Containers)
		sameResources(rest.Spec.InitContainers, before.Spec.InitContainers)
	}
	rest.Labels, rest.Annotations = before.Labels, before.Annotations
	rest.Spec.Tolerations, rest.Spec.NodeSelector, rest.Spec.SchedulingGates = before.Spec.Tolerations, before.Spec.NodeSelector,
		before.Spec.SchedulingGates
	var was *v1.NodeAffinity
	if before.Spec.Affinity != nil {
		was = before.Spec.Affinity.NodeAffinity
	}
	if rest.Spec.Affinity == nil {
		rest.Spec.Affinity = &v1.Affinity{}
	}
	rest.Spec.Affinity.NodeAffinity = was
	if before.Spec.Affinity == nil && equality.Semantic.DeepEqual(rest.Spec.Affinity, &v1.Affinity{}) {
		rest.Spec.Affinity = nil
	}
	return rest
}

// sameResources puts the amounts of before back where the containers are the same.
func sameResources(now, before []v1.Container) {
	for i := range now {
		if i < len(before) && now[i].Name == before[i].Name {
			now[i].Resources = before[i].Resources
		}
	}
}

func cronJob(c *batch.CronJob) errs {
	s := &c.Spec
	all := schedule(s)
	all = append(all, notNegativeIfSet(specPath.Child("startingDeadlineSeconds"), s.StartingDeadlineSeconds)...)
	all = append(all, mustBeOneOf(specPath.Child("concurrencyPolicy"), s.ConcurrencyPolicy, batch.AllowConcurrent, batch.ForbidConcurrent,
		batch.ReplaceConcurrent)...)
	all = append(all, notNegativeIfSet(specPath.Child("successfulJobsHistoryLimit"), s.SuccessfulJobsHistoryLimit)...)
	all = append(all, notNegativeIfSet(specPath.Child("failedJobsHistoryLimit"), s.FailedJobsHistoryLimit)...)
	at := specPath.Child("jobTemplate", "spec")
	if deref(s.JobTemplate.Spec.ManualSelector) {
		all = append(all, field.NotSupported(at.Child("manualSelector"), *s.JobTemplate.Spec.ManualSelector, []string{"nil", "false"}))
	}
	if s.JobTemplate.Spec.Selector != nil {
		all = append(all, field.Invalid(at.Child("selector"), s.JobTemplate.Spec.Selector, "`selector` will be auto-generated"))
	}
	return append(all, jobSpec(at, &s.JobTemplate.Spec)...)
}

func CronJob(c *batch.CronJob) errs {
	all := cronJob(c)
	if len(c.Name) > maxCronJobName {
		all = append(all, field.Invalid(field.NewPath("metadata", "name"), c.Name, fmt.Sprintf("must be no more than %d characters",
			maxCronJobName)))
	}
	return all
}

func schedule(s *batch.CronJobSpec) errs {
	at := specPath.Child("schedule")
	var all errs
	if s.Schedule == "" {
		all = append(all, field.Required(at, ""))
	} else if err := parseSchedule(s.Schedule); err != nil {
		all = append(all, field.Invalid(at, s.Schedule, err.Error()))
	}
	if strings.Contains(s.Schedule, "TZ") {
		all = append(all, field.Invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	}
	zone := specPath.Child("timeZone")
	switch {
	case s.TimeZone == nil:
	case *s.TimeZone == "":
		all = append(all, field.Invalid(zone, *s.TimeZone, "timeZone must be nil or non-empty string"))
	case strings.EqualFold(*s.TimeZone, "Local"):
		all = append(all, field.Invalid(zone, *s.TimeZone,
			"timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	default:
		if _, err := time.LoadLocation(*s.TimeZone); err != nil {
			all = append(all, field.Invalid(zone, *s.TimeZone, err.Error()))
		}
	}
	return all
}

// parseSchedule turns a panic of the parser on odd input into an error, so
// that no text a client sends can take the server down.
func parseSchedule(text string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(text)
	return err
}

func CronJobUpdate(changed, _ *batch.CronJob) errs { return cronJob(changed) }
