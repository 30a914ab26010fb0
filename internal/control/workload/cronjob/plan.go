// Package cronjob makes Jobs on a schedule and keeps as many finished ones as
// asked.
package cronjob

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/workload/job"
	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
)

// tooManyMissed is how many missed times are worth a warning.
const tooManyMissed = 100

// event is one event on the CronJob.
type event struct{ Type, Reason, Message string }

// plan is what to do next about one CronJob, in this order: delete Replace,
// create Create, delete History, write Status.
type plan struct {
	Status batchv1.CronJobStatus
	// Create is the Job of a due time; Time is that time.
	Create *batchv1.Job
	Time   time.Time
	// Replace are running Jobs that give way to it.
	Replace []*batchv1.Job
	// History are finished Jobs beyond the limits.
	History []*batchv1.Job
	Events  []event
	// Wake is how long until the next time, 0 for never.
	Wake time.Duration
}

// schedule reads a CronJob's schedule and time zone.
func schedule(cj *batchv1.CronJob) (cron.Schedule, error) {
	spec := cj.Spec.Schedule
	if tz := cj.Spec.TimeZone; tz != nil {
		if strings.Contains(spec, "TZ") {
			return nil, fmt.Errorf("spec.schedule: a time zone is allowed in spec.timeZone only")
		}
		loc, err := time.LoadLocation(*tz)
		if err != nil {
			return nil, fmt.Errorf("spec.timeZone: unknown time zone %q: %w", *tz, err)
		}
		spec = "TZ=" + loc.String() + " " + spec
	}
	s, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule: %w", err)
	}
	return s, nil
}

// last returns the most recent due time after earliest and not after now, and
// how many there were. It skips over long gaps by arithmetic on the period of
// the schedule, so that a CronJob asleep for a year costs no more than one
// asleep for an hour.
func last(s cron.Schedule, earliest, now time.Time) (at time.Time, missed int) {
	first := s.Next(earliest)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0
	}
	second := s.Next(first)
	if second.IsZero() || second.After(now) {
		return first, 1
	}
	period := second.Sub(first)
	missed = 1 + int(now.Sub(first)/period)
	// Search backwards for the last one, by growing steps: schedules are not
	// evenly spaced.
	from := now
	for step := period; ; step *= 2 {
		from = now.Add(-step)
		if !from.After(first) {
			from = first.Add(-time.Nanosecond)
		}
		if t := s.Next(from); !t.IsZero() && !t.After(now) {
			for n := s.Next(t); !n.IsZero() && !n.After(now); n = s.Next(n) {
				t = n
			}
			return t, missed
		}
		if from.Before(first) {
			return first, missed
		}
	}
}

// makePlan plans the next step from the CronJob, the Jobs it controls, and now.
func makePlan(cj *batchv1.CronJob, jobs []*batchv1.Job, now time.Time) plan {
	p := plan{Status: *cj.Status.DeepCopy()}
	p.active(cj, jobs)
	p.history(cj, jobs)
	if cj.DeletionTimestamp != nil || (cj.Spec.Suspend != nil && *cj.Spec.Suspend) {
		return p
	}
	s, err := schedule(cj)
	if err != nil {
		reason := "UnparseableSchedule"
		if strings.HasPrefix(err.Error(), "spec.timeZone") {
			reason = "UnknownTimeZone"
		}
		p.event(v1.EventTypeWarning, reason, "%v", err)
		return p
	}
	if next := s.Next(now); !next.IsZero() {
		// A little late is better than a moment early, which would be a wake
		// for nothing.
		p.Wake = next.Sub(now) + 100*time.Millisecond
	}
	p.due(cj, s, now)
	return p
}

func (p *plan) event(typ, reason, format string, args ...any) {
	p.Events = append(p.Events, event{typ, reason, fmt.Sprintf(format, args...)})
}

// active keeps the list of running Jobs and the last success.
func (p *plan) active(cj *batchv1.CronJob, jobs []*batchv1.Job) {
	known := map[string]bool{}
	for _, r := range cj.Status.Active {
		known[string(r.UID)] = true
	}
	var now []v1.ObjectReference
	sorted := append([]*batchv1.Job(nil), jobs...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].CreationTimestamp.Before(&sorted[j].CreationTimestamp) })
	for _, j := range sorted {
		if !job.Over(j) {
			now = append(now, reference(j))
			continue
		}
		if known[string(j.UID)] {
			p.event(v1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %s", j.Name, endOf(j))
		}
		if t := j.Status.CompletionTime; t != nil && (p.Status.LastSuccessfulTime == nil || t.After(p.Status.LastSuccessfulTime.Time)) {
			p.Status.LastSuccessfulTime = t
		}
	}
	for _, r := range cj.Status.Active {
		gone := true
		for _, j := range jobs {
			gone = gone && j.UID != r.UID
		}
		if gone {
			p.event(v1.EventTypeNormal, "MissingJob", "Active job went missing: %s", r.Name)
		}
	}
	if equality.Semantic.DeepEqual(now, cj.Status.Active) {
		now = cj.Status.Active
	}
	p.Status.Active = now
}

func reference(j *batchv1.Job) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID,
		ResourceVersion: j.ResourceVersion}
}

func endOf(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// history picks the oldest finished Jobs beyond the limits.
func (p *plan) history(cj *batchv1.CronJob, jobs []*batchv1.Job) {
	trim := func(end batchv1.JobConditionType, limit *int32) {
		var done []*batchv1.Job
		for _, j := range jobs {
			if endOf(j) == end && j.DeletionTimestamp == nil {
				done = append(done, j)
			}
		}
		if limit == nil || len(done) <= int(*limit) {
			return
		}
		sort.SliceStable(done, func(i, j int) bool {
			a, b := done[i].Status.StartTime, done[j].Status.StartTime
			if a == nil || b == nil || a.Equal(b) {
				return done[i].Name < done[j].Name
			}
			return a.Before(b)
		})
		p.History = append(p.History, done[:len(done)-int(*limit)]...)
	}
	trim(batchv1.JobComplete, cj.Spec.SuccessfulJobsHistoryLimit)
	trim(batchv1.JobFailed, cj.Spec.FailedJobsHistoryLimit)
}

// due makes the Job of the latest due time, unless it is too late for it or
// the concurrency policy says otherwise.
func (p *plan) due(cj *batchv1.CronJob, s cron.Schedule, now time.Time) {
	earliest := cj.CreationTimestamp.Time
	if cj.Status.LastScheduleTime != nil {
		earliest = cj.Status.LastScheduleTime.Time
	}
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		if limit := now.Add(-time.Duration(*d) * time.Second); limit.After(earliest) {
			earliest = limit
		}
	}
	at, missed := last(s, earliest, now)
	if missed > tooManyMissed {
		p.event(v1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times: %d. Set or decrease .spec.startingDeadlineSeconds or check clock skew", missed)
	}
	if at.IsZero() {
		return
	}
	if d := cj.Spec.StartingDeadlineSeconds; d != nil && at.Add(time.Duration(*d)*time.Second).Before(now) {
		p.event(v1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return
	}
	j := newJob(cj, at)
	for _, r := range p.Status.Active {
		if r.Name == j.Name {
			p.scheduled(at) // made already; only the status is behind
			return
		}
	}
	switch {
	case len(p.Status.Active) > 0 && cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent:
		p.event(v1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		return
	case cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, r := range p.Status.Active {
			p.Replace = append(p.Replace, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: cj.Namespace, Name: r.Name, UID: r.UID}})
		}
		p.Status.Active = nil
	}
	p.Create, p.Time = j, at
	p.scheduled(at)
}

func (p *plan) scheduled(at time.Time) {
	t := metav1.NewTime(at)
	p.Status.LastScheduleTime = &t
}

// newJob makes the Job of one due time. Its name follows from the time, so
// that no time is ever served twice.
func newJob(cj *batchv1.CronJob, at time.Time) *batchv1.Job {
	t := cj.Spec.JobTemplate.DeepCopy()
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	local := at
	if cj.Spec.TimeZone != nil {
		if loc, err := time.LoadLocation(*cj.Spec.TimeZone); err == nil {
			local = at.In(loc)
		}
	}
	t.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = local.Format(time.RFC3339)
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", cj.Name, at.Unix()/60), Namespace: cj.Namespace,
		Labels: t.Labels, Annotations: t.Annotations,
		OwnerReferences: []metav1.OwnerReference{podcontrol.Owner(cj, "batch/v1", "CronJob")}}, Spec: t.Spec}
}
