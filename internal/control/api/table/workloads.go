package table

import (
	"fmt"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var Deployment = of(func(now time.Time, d *apps.Deployment) []any {
	names, images := templateCells(&d.Spec.Template.Spec)
	return []any{d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, deref(d.Spec.Replicas)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), created(now, d),
		names, images, metav1.FormatLabelSelector(d.Spec.Selector)}
}, nameColumn, text("Ready", "Ready pods of those wanted."),
	text("Up-to-date", apps.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
	text("Available", apps.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
	ageColumn, containersColumn, imagesColumn, selectorColumn)

// replicaColumns serve replica sets and replication controllers.
var replicaColumns = []metav1.TableColumnDefinition{nameColumn,
	number("Desired", apps.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
	number("Current", apps.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
	number("Ready", apps.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
	ageColumn, containersColumn, imagesColumn, selectorColumn}

var ReplicaSet = of(func(now time.Time, r *apps.ReplicaSet) []any {
	names, images := templateCells(&r.Spec.Template.Spec)
	return []any{r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
		created(now, r), names, images, metav1.FormatLabelSelector(r.Spec.Selector)}
}, replicaColumns...)

var ReplicationController = of(func(now time.Time, r *v1.ReplicationController) []any {
	var names, images string
	if r.Spec.Template != nil {
		names, images = templateCells(&r.Spec.Template.Spec)
	}
	return []any{r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
		created(now, r), names, images, labels.FormatLabels(r.Spec.Selector)}
}, replicaColumns...)

var StatefulSet = of(func(now time.Time, s *apps.StatefulSet) []any {
	names, images := templateCells(&s.Spec.Template.Spec)
	return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, deref(s.Spec.Replicas)), created(now, s), names, images}
}, nameColumn, text("Ready", "Ready pods of those wanted."), ageColumn, containersColumn, imagesColumn)

var DaemonSet = of(func(now time.Time, d *apps.DaemonSet) []any {
	names, images := templateCells(&d.Spec.Template.Spec)
	return []any{d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled),
		int64(d.Status.NumberReady), int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable),
		labels.FormatLabels(d.Spec.Template.Spec.NodeSelector), created(now, d),
		names, images, metav1.FormatLabelSelector(d.Spec.Selector)}
}, nameColumn,
	number("Desired", apps.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
	number("Current", apps.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
	number("Ready", apps.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
	number("Up-to-date", apps.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
	number("Available", apps.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
	text("Node Selector", v1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
	ageColumn, containersColumn, imagesColumn, selectorColumn)

var ControllerRevision = of(func(now time.Time, r *apps.ControllerRevision) []any {
	owner := none
	if o := metav1.GetControllerOf(r); o != nil {
		group, _ := schema.ParseGroupVersion(o.APIVersion)
		kind := schema.GroupKind{Group: group.Group, Kind: o.Kind}
		owner = strings.ToLower(kind.String()) + "/" + o.Name
	}
	return []any{r.Name, owner, r.Revision, created(now, r)}
}, nameColumn, text("Controller", "What the revision belongs to."),
	text("Revision", apps.ControllerRevision{}.SwaggerDoc()["revision"]), ageColumn)

var Job = of(func(now time.Time, j *batch.Job) []any {
	names, images := templateCells(&j.Spec.Template.Spec)
	return []any{j.Name, jobStatus(j), jobCompletions(j), jobDuration(now, j), created(now, j),
		names, images, metav1.FormatLabelSelector(j.Spec.Selector)}
}, nameColumn, text("Status", "What the job is doing, or how it ended."),
	text("Completions", batch.JobStatus{}.SwaggerDoc()["succeeded"]),
	text("Duration", "Time from start to completion, or until now."),
	ageColumn, containersColumn, imagesColumn, selectorColumn)

func jobStatus(j *batch.Job) string {
	holds := func(kind batch.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind && c.Status == v1.ConditionTrue {
				return true
			}
		}
		return false
	}
	switch {
	case holds(batch.JobComplete):
		return "Complete"
	case holds(batch.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case holds(batch.JobSuspended):
		return "Suspended"
	case holds(batch.JobFailureTarget):
		return "FailureTarget"
	case holds(batch.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func jobCompletions(j *batch.Job) string {
	if j.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	}
	if parallel := deref(j.Spec.Parallelism); parallel > 1 {
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallel)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobDuration(now time.Time, j *batch.Job) string {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(j.Status.StartTime.Time))
	}
	return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
}

var CronJob = of(func(now time.Time, c *batch.CronJob) []any {
	names, images := templateCells(&c.Spec.JobTemplate.Spec.Template.Spec)
	last := none
	if c.Status.LastScheduleTime != nil {
		last = age(now, *c.Status.LastScheduleTime)
	}
	return []any{c.Name, c.Spec.Schedule, or(deref(c.Spec.TimeZone), none), formatBool(c.Spec.Suspend), int64(len(c.Status.Active)),
		last, created(now, c), names, images, metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector)}
}, nameColumn,
	text("Schedule", batch.CronJobSpec{}.SwaggerDoc()["schedule"]),
	text("Timezone", batch.CronJobSpec{}.SwaggerDoc()["timeZone"]),
	boolean("Suspend", batch.CronJobSpec{}.SwaggerDoc()["suspend"]),
	number("Active", batch.CronJobStatus{}.SwaggerDoc()["active"]),
	text("Last Schedule", batch.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
	ageColumn, containersColumn, imagesColumn, selectorColumn)

var PodDisruptionBudget = of(func(now time.Time, b *policy.PodDisruptionBudget) []any {
	amount := func(v *intstr.IntOrString) string {
		if v == nil {
			return "N/A"
		}
		return v.String()
	}
	return []any{b.Name, amount(b.Spec.MinAvailable), amount(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed), created(now, b)}
}, nameColumn, text("Min Available", "Pods that must stay available."), text("Max Unavailable", "Pods that may be unavailable."),
	number("Allowed Disruptions", policy.PodDisruptionBudgetStatus{}.SwaggerDoc()["disruptionsAllowed"]), ageColumn)
