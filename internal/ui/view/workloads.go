package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// Kinds are the kinds of workloads that have a page.
var Kinds = []string{"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"}

// workloadLine is a line of the list of workloads.
type workloadLine struct {
	Object      journal.Ref
	State       stateWord
	Ready, Want int32
	Images      []string
	Created     time.Time
}

// workloadsPage is the page of workloads.
type workloadsPage struct {
	Query      Query
	Kinds      []string
	Namespaces []string
	Page       pageRows[workloadLine]
	Complete   bool
}

// WorkloadsView lists the workloads that match, by namespace, name and kind.
func WorkloadsView(s *Snapshot, r callerRights, q Query, _ time.Time) workloadsPage {
	l := workloadsPage{Query: q, Kinds: Kinds, Namespaces: namespaceNames(s, r), Complete: true}
	p := paged[workloadLine]{after: q.After}
	for _, kind := range Kinds {
		if q.Kind != "" && q.Kind != kind {
			continue
		}
		l.Complete = s.within(r, resources[kind], q.Namespace, func(ns string) {
			for _, o := range s.Workloads(kind, ns) {
				if metav1.GetControllerOf(o) != nil || !contains(o.GetName(), q.Text) {
					continue // a CronJob's Jobs are on its page
				}
				row := workloadRow(kind, o)
				if q.Wrong && row.State.Level != Bad && row.State.Level != Warn {
					continue
				}
				p.add(o.GetNamespace()+"/"+o.GetName()+"/"+kind, row)
			}
		}) && l.Complete
	}
	l.Page = pageOf(&p, func(r workloadLine) workloadLine { return r })
	return l
}

func workloadRow(kind string, o metav1.Object) workloadLine {
	row := workloadLine{Object: journal.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()},
		Created: o.GetCreationTimestamp().Time}
	var template *v1.PodSpec
	switch o := o.(type) {
	case *appsv1.Deployment:
		row.Ready, row.Want, template = o.Status.ReadyReplicas, replicas(o.Spec.Replicas), &o.Spec.Template.Spec
		if o.Spec.Paused {
			row.State = stateWord{"Paused", Idle}
		}
	case *appsv1.StatefulSet:
		row.Ready, row.Want, template = o.Status.ReadyReplicas, replicas(o.Spec.Replicas), &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		row.Ready, row.Want, template = o.Status.NumberReady, o.Status.DesiredNumberScheduled, &o.Spec.Template.Spec
	case *batchv1.Job:
		row.Ready, row.Want, template = o.Status.Succeeded, replicas(o.Spec.Completions), &o.Spec.Template.Spec
		row.State = jobState(o)
	case *batchv1.CronJob:
		row.Ready, row.Want, template = int32(len(o.Status.Active)), int32(len(o.Status.Active)), &o.Spec.JobTemplate.Spec.Template.Spec
		row.State = stateWord{o.Spec.Schedule, Good}
		if o.Spec.Suspend != nil && *o.Spec.Suspend {
			row.State = stateWord{"Suspended", Idle}
		}
	}
	if template != nil {
		for _, c := range template.Containers {
			row.Images = append(row.Images, c.Image)
		}
	}
	if row.State.Word != "" {
		return row
	}
	word, _ := stuck(o)
	switch {
	case word != "":
		row.State = stateWord{word, Bad}
	case row.Want == 0:
		row.State = stateWord{"Scaled to 0", Idle}
	case row.Ready < row.Want:
		row.State = stateWord{"Not Ready", Warn}
	default:
		row.State = stateWord{"Ready", Good}
	}
	return row
}

func jobState(j *batchv1.Job) stateWord {
	for _, c := range j.Status.Conditions {
		if c.Status != v1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			return stateWord{"Complete", Idle}
		case batchv1.JobFailed:
			return stateWord{"Failed", Bad}
		case batchv1.JobSuspended:
			return stateWord{"Suspended", Idle}
		}
	}
	return stateWord{"Running", Good}
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// workloadPage is the page of one workload.
type workloadPage struct {
	Row       workloadLine
	Answer    *why.Answer
	Facts     []journal.Fact
	Revisions []revisionRow
	Pods      pageRows[podLine]
	HasUsage  bool
	Story     []storyEntry
}

// revisionRow is a ReplicaSet of a Deployment or a Job of a CronJob.
type revisionRow struct {
	Name, Number string
	Ready, Want  int32
	Images       []string
	Created      time.Time
}

// WorkloadView is one workload; ok is false where there is none that the caller may see.
func WorkloadView(s *Snapshot, r callerRights, ref journal.Ref, q Query, now time.Time) (v workloadPage, ok bool) {
	if !slices.Contains(Kinds, ref.Kind) || !may(r, resources[ref.Kind], ref.Namespace) {
		return v, false
	}
	o := s.Workload(ref.Kind, ref.Namespace, ref.Name)
	if o == nil {
		return v, false
	}
	v = workloadPage{Row: workloadRow(ref.Kind, o), Answer: s.answer(ref), Facts: workloadFacts(o), HasUsage: s.PodUsage != nil}
	owners := map[string]bool{string(o.GetUID()): true}
	for _, kind := range []string{"ReplicaSet", "Job"} {
		if kind == ref.Kind || !may(r, resources[kind], ref.Namespace) {
			continue
		}
		for _, part := range s.Workloads(kind, ref.Namespace) {
			if c := metav1.GetControllerOf(part); c != nil && c.UID == o.GetUID() {
				owners[string(part.GetUID())] = true
				v.Revisions = append(v.Revisions, revision(part))
			}
		}
	}
	slices.SortFunc(v.Revisions, func(a, b revisionRow) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name))
	})
	v.Revisions = v.Revisions[:min(len(v.Revisions), 10)]
	p := paged[*v1.Pod]{after: q.After}
	s.podsOf(r, ref.Namespace, func(pod *v1.Pod) {
		c := metav1.GetControllerOf(pod)
		if c != nil && owners[string(c.UID)] && contains(pod.Name, q.Text) && (!q.Wrong || podWrong(pod, now)) {
			p.add(pod.Namespace+"/"+pod.Name, pod)
		}
	})
	v.Pods = pageOf(&p, func(o *v1.Pod) podLine { return podRow(s, r, o, now) })
	v.Story = story(s.events(ref.Kind, ref.Namespace, ref.Name), s.decisions(r, ref))
	return v, true
}

func revision(o metav1.Object) revisionRow {
	out := revisionRow{Name: o.GetName(), Number: o.GetAnnotations()["deployment.kubernetes.io/revision"],
		Created: o.GetCreationTimestamp().Time}
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		out.Ready, out.Want = o.Status.ReadyReplicas, replicas(o.Spec.Replicas)
		for _, c := range o.Spec.Template.Spec.Containers {
			out.Images = append(out.Images, c.Image)
		}
	case *batchv1.Job:
		out.Ready, out.Want = o.Status.Succeeded, replicas(o.Spec.Completions)
		out.Number = jobState(o).Word
	}
	return out
}

// workloadFacts are the fields of a workload that people ask for first.
func workloadFacts(o metav1.Object) (out []journal.Fact) {
	add := func(name, format string, args ...any) {
		out = append(out, journal.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		add("strategy", "%s", o.Spec.Strategy.Type)
		add("replicas", "%d wanted, %d updated, %d ready, %d available", replicas(o.Spec.Replicas), o.Status.UpdatedReplicas,
			o.Status.ReadyReplicas, o.Status.AvailableReplicas)
	case *appsv1.StatefulSet:
		add("replicas", "%d wanted, %d updated, %d ready", replicas(o.Spec.Replicas), o.Status.UpdatedReplicas, o.Status.ReadyReplicas)
		add("service", "%s", o.Spec.ServiceName)
	case *appsv1.DaemonSet:
		add("nodes", "%d wanted, %d updated, %d ready", o.Status.DesiredNumberScheduled, o.Status.UpdatedNumberScheduled,
			o.Status.NumberReady)
	case *batchv1.Job:
		add("completions", "%d of %d, %d failed", o.Status.Succeeded, replicas(o.Spec.Completions), o.Status.Failed)
	case *batchv1.CronJob:
		add("schedule", "%s", o.Spec.Schedule)
		if o.Status.LastScheduleTime != nil {
			add("last run", "%s", o.Status.LastScheduleTime.UTC().Format(time.RFC3339))
		}
	}
	return out
}
