// Package job runs the pods of Jobs to completion and counts each outcome
// exactly once.
//
// Counting survives crashes by the API's own protocol: pods carry a tracking
// finalizer; an outcome is first noted in status.uncountedTerminatedPods, then
// the pod's finalizer goes, and only then does the note become a number. Each
// plan does one step of that for every pod; the shell writes the status before
// it removes finalizers.
package job

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// failRetry are the pauses between replacements of failed pods.
var failRetry = controller.Backoff{First: 10 * time.Second, Most: 10 * time.Minute}

// maxUncounted bounds the notes in one status.
const maxUncounted = 500

// Input is everything one plan looks at.
type Input struct {
	Job  *batchv1.Job
	Pods []*v1.Pod // the Job's own
	Now  time.Time
}

// podCreation is one pod to make; Index is -1 for a Job without indexes.
type podCreation struct {
	Index, Failures, Ignored int
}

// jobEvent is one event on the Job.
type jobEvent struct{ Type, Reason, Message string }

// Plan is what to do next about one Job, in this order: write Status, take the
// finalizer off Finished, delete Delete, create Create.
type Plan struct {
	Status batchv1.JobStatus
	// Finished are pods whose outcome Status holds; their finalizer can go.
	Finished []*v1.Pod
	// Delete are pods to delete. Uncount says that they end because the Job
	// wants fewer: their finalizer goes first, and they count for nothing.
	Delete  []*v1.Pod
	Uncount bool
	Create  []podCreation
	Events  []jobEvent
	Wake    time.Duration
	Because []journal.Fact
}

type planner struct {
	Input
	plan        Plan
	st          batchv1.JobStatus
	indexed     bool
	completions int // -1: no number asked for
	parallel    int

	active, terminating, failedPods, donePods []*v1.Pod
	done, broken                              set // indexes that succeeded; that failed for good
	// failed counts every failure known, noted ones included.
	failed    int
	succeeded int
}

// Finalizer tracks pods whose outcome is not counted yet.
const Finalizer = batchv1.JobTrackingFinalizer

func tracked(p *v1.Pod) bool { return slices.Contains(p.Finalizers, Finalizer) }

// Over says whether a Job has ended for good.
func Over(j *batchv1.Job) bool {
	return has(&j.Status, batchv1.JobComplete) || has(&j.Status, batchv1.JobFailed)
}

func has(st *batchv1.JobStatus, t batchv1.JobConditionType) bool {
	c := find(st, t)
	return c != nil && c.Status == v1.ConditionTrue
}

func find(st *batchv1.JobStatus, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

// completionIndex reads a pod's completion index, -1 if it has none.
func completionIndex(p *v1.Pod) int {
	n, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Make plans the next step.
func Make(in Input) Plan {
	p := &planner{Input: in, st: *in.Job.Status.DeepCopy(), completions: -1, parallel: 1,
		indexed: in.Job.Spec.CompletionMode != nil && *in.Job.Spec.CompletionMode == batchv1.IndexedCompletion}
	if in.Job.Spec.Completions != nil {
		p.completions = int(*in.Job.Spec.Completions)
	}
	if in.Job.Spec.Parallelism != nil {
		p.parallel = int(*in.Job.Spec.Parallelism)
	}
	if Over(in.Job) || in.Job.DeletionTimestamp != nil {
		// Nothing to count any more; leave nothing behind that blocks pods.
		for _, pod := range in.Pods {
			if tracked(pod) {
				p.plan.Finished = append(p.plan.Finished, pod)
			}
		}
		p.plan.Status = p.st
		return p.plan
	}
	p.sort()
	p.count()
	p.start()
	p.decide()
	p.summarize()
	return p.plan
}

// ended says how a pod counts: a pod on its way out counts as failed, unless
// the Job replaces pods only once they have really ended.
func (p *planner) ended(pod *v1.Pod) (succeeded, failed bool) {
	switch {
	case pod.Status.Phase == v1.PodSucceeded:
		return true, false
	case pod.Status.Phase == v1.PodFailed:
		return false, true
	}
	return false, pod.DeletionTimestamp != nil && !p.onlyReplaceEnded()
}

func (p *planner) onlyReplaceEnded() bool {
	r := p.Job.Spec.PodReplacementPolicy
	return r != nil && *r == batchv1.Failed
}

func (p *planner) sort() {
	for _, pod := range p.Pods {
		ok, bad := p.ended(pod)
		switch {
		case ok:
			p.donePods = append(p.donePods, pod)
		case bad:
			p.failedPods = append(p.failedPods, pod)
		case pod.DeletionTimestamp != nil:
		default:
			p.active = append(p.active, pod)
		}
		if pod.DeletionTimestamp != nil && !podutil.Terminal(pod) {
			p.terminating = append(p.terminating, pod)
		}
	}
}

// count moves every outcome one step along the protocol.
func (p *planner) count() {
	notes := p.st.UncountedTerminatedPods
	if notes == nil {
		notes = &batchv1.UncountedTerminatedPods{}
	}
	held := map[types.UID]bool{} // pods that still carry the finalizer
	for _, pod := range p.Pods {
		if tracked(pod) {
			held[pod.UID] = true
		}
	}
	flush := func(list []types.UID, number *int32) (left []types.UID) {
		for _, uid := range list {
			if held[uid] {
				left = append(left, uid)
			} else {
				*number++
			}
		}
		return left
	}
	notes = &batchv1.UncountedTerminatedPods{Succeeded: flush(notes.Succeeded, &p.st.Succeeded), Failed: flush(notes.Failed, &p.st.Failed)}
	p.done, p.broken = parseIndexes(p.st.CompletedIndexes, max(p.completions, 0)), set{}
	if p.st.FailedIndexes != nil {
		p.broken = parseIndexes(*p.st.FailedIndexes, max(p.completions, 0))
	}
	p.noteSuccesses(notes)
	p.noteFailures(notes)
	p.st.UncountedTerminatedPods = nil
	if len(notes.Succeeded)+len(notes.Failed) > 0 {
		p.st.UncountedTerminatedPods = notes
	}
	if p.indexed {
		p.st.CompletedIndexes = p.done.String()
		p.st.Succeeded = int32(len(p.done))
		if p.Job.Spec.BackoffLimitPerIndex != nil {
			s := p.broken.String()
			p.st.FailedIndexes = &s
		}
	}
	p.succeeded = int(p.st.Succeeded) + len(notes.Succeeded)
	p.failed = int(p.st.Failed) + len(notes.Failed)
}

func (p *planner) noteSuccesses(notes *batchv1.UncountedTerminatedPods) {
	for _, pod := range p.donePods {
		if !tracked(pod) {
			continue
		}
		if p.indexed {
			if i := completionIndex(pod); i >= 0 && i < p.completions && !p.broken[i] {
				p.done[i] = true
			}
			p.plan.Finished = append(p.plan.Finished, pod)
			continue
		}
		p.countOnce(&notes.Succeeded, notes, pod)
	}
}

func (p *planner) noteFailures(notes *batchv1.UncountedTerminatedPods) {
	for _, pod := range p.failedPods {
		if !tracked(pod) {
			continue
		}
		action, msg := matchFailurePolicy(p.Job.Spec.PodFailurePolicy, pod)
		if action == batchv1.PodFailurePolicyActionFailJob && find(&p.st, batchv1.JobFailureTarget) == nil &&
			find(&p.st, batchv1.JobSuccessCriteriaMet) == nil {
			p.target(batchv1.JobFailureTarget, batchv1.JobReasonPodFailurePolicy, msg)
		}
		if i := completionIndex(pod); p.Job.Spec.BackoffLimitPerIndex != nil && i >= 0 && !p.done[i] {
			if action == batchv1.PodFailurePolicyActionFailIndex ||
				(action != batchv1.PodFailurePolicyActionIgnore && failures(pod)+1 > int(*p.Job.Spec.BackoffLimitPerIndex)) {
				p.broken[i] = true
			} else if !p.superseded(pod, i) {
				// The next pod of the index reads the count off this one: it
				// keeps its finalizer until that pod exists.
				continue
			}
		}
		if action == batchv1.PodFailurePolicyActionIgnore {
			p.plan.Finished = append(p.plan.Finished, pod)
			continue
		}
		p.countOnce(&notes.Failed, notes, pod)
	}
}

// superseded says whether a newer pod of the index carries the failure count
// on.
func (p *planner) superseded(pod *v1.Pod, index int) bool {
	for _, o := range p.Pods {
		if o != pod && completionIndex(o) == index && failures(o)+ignored(o) > failures(pod)+ignored(pod) {
			return true
		}
	}
	return p.Job.Status.CompletionTime != nil || find(&p.st, batchv1.JobFailureTarget) != nil ||
		find(&p.st, batchv1.JobSuccessCriteriaMet) != nil
}

// countOnce adds the pod to the uncounted list, or to Finished if it is on a
// list already.
func (p *planner) countOnce(list *[]types.UID, notes *batchv1.UncountedTerminatedPods, pod *v1.Pod) {
	if slices.Contains(notes.Succeeded, pod.UID) || slices.Contains(notes.Failed, pod.UID) {
		p.plan.Finished = append(p.plan.Finished, pod)
		return
	}
	if len(notes.Succeeded)+len(notes.Failed) >= maxUncounted {
		return // in the next step
	}
	*list = append(*list, pod.UID)
	p.plan.Finished = append(p.plan.Finished, pod)
}

func annotated(p *v1.Pod, key string) int {
	n, err := strconv.Atoi(p.Annotations[key])
	if err != nil {
		return 0
	}
	return n
}

func failures(p *v1.Pod) int { return annotated(p, batchv1.JobIndexFailureCountAnnotation) }
func ignored(p *v1.Pod) int  { return annotated(p, batchv1.JobIndexIgnoredFailureCountAnnotation) }

// start keeps the start time and the Suspended condition.
func (p *planner) start() {
	suspended := p.Job.Spec.Suspend != nil && *p.Job.Spec.Suspend
	c := find(&p.st, batchv1.JobSuspended)
	switch {
	case suspended && (c == nil || c.Status != v1.ConditionTrue):
		p.set(batchv1.JobSuspended, v1.ConditionTrue, "JobSuspended", "Job suspended")
		p.event(v1.EventTypeNormal, "Suspended", "Job suspended")
		p.st.StartTime = nil
	case !suspended && c != nil && c.Status == v1.ConditionTrue:
		p.set(batchv1.JobSuspended, v1.ConditionFalse, "JobResumed", "Job resumed")
		p.event(v1.EventTypeNormal, "Resumed", "Job resumed")
	}
	if !suspended && p.st.StartTime == nil {
		now := metav1.NewTime(p.Now)
		p.st.StartTime = &now
	}
}

func (p *planner) set(t batchv1.JobConditionType, s v1.ConditionStatus, reason, msg string) {
	now := metav1.NewTime(p.Now)
	n := batchv1.JobCondition{Type: t, Status: s, Reason: reason, Message: msg, LastProbeTime: now, LastTransitionTime: now}
	if c := find(&p.st, t); c != nil {
		*c = n
		return
	}
	p.st.Conditions = append(p.st.Conditions, n)
}

func (p *planner) event(typ, reason, msg string) {
	p.plan.Events = append(p.plan.Events, jobEvent{typ, reason, msg})
}

// target announces how the Job will end; it ends once no pod runs any more.
func (p *planner) target(t batchv1.JobConditionType, reason, msg string) {
	p.set(t, v1.ConditionTrue, reason, msg)
}

func (p *planner) summarize() {
	p.st.Active = int32(len(p.active))
	ready, leaving := int32(0), int32(len(p.terminating))
	for _, pod := range p.active {
		if podutil.Ready(pod) {
			ready++
		}
	}
	p.st.Ready, p.st.Terminating = &ready, &leaving
	p.plan.Status = p.st
	if len(p.plan.Create)+len(p.plan.Delete) > 0 {
		p.plan.Because = []journal.Fact{
			{Name: "pods", Value: fmt.Sprintf("%d active, %d terminating, %d succeeded, %d failed", len(p.active), len(p.terminating),
				p.succeeded, p.failed)},
			{Name: "wanted", Value: fmt.Sprintf("%d completions, %d at a time", p.completions, p.parallel)}}
	}
}

func finishedAt(p *v1.Pod) time.Time {
	var at time.Time
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	if at.IsZero() {
		if p.DeletionTimestamp != nil {
			at = p.DeletionTimestamp.Time
			if p.DeletionGracePeriodSeconds != nil {
				at = at.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
			}
		} else if c := podutil.Condition(p, v1.PodReady); c != nil {
			at = c.LastTransitionTime.Time
		} else {
			at = p.CreationTimestamp.Time
		}
	}
	return at
}

// pause is how long to wait before replacing failed pods: it doubles with each
// failure since the last success. It is read off the pods, so a restart of the
// controller does not forget it.
func (p *planner) pause(pods []*v1.Pod) time.Duration {
	var lastGood, lastBad time.Time
	for _, pod := range p.donePods {
		if at := finishedAt(pod); at.After(lastGood) {
			lastGood = at
		}
	}
	n := 0
	for _, pod := range pods {
		if pod.Status.Phase != v1.PodFailed {
			continue // evicted or deleted: not the program's fault
		}
		if action, _ := matchFailurePolicy(p.Job.Spec.PodFailurePolicy, pod); action == batchv1.PodFailurePolicyActionIgnore {
			continue
		}
		if at := finishedAt(pod); at.After(lastGood) {
			n++
			if at.After(lastBad) {
				lastBad = at
			}
		}
	}
	if n == 0 {
		return 0
	}
	return max(lastBad.Add(failRetry.Delay(n)).Sub(p.Now), 0)
}

func byCreation(pods []*v1.Pod) []*v1.Pod {
	pods = append([]*v1.Pod(nil), pods...)
	sort.SliceStable(pods, func(i, j int) bool { return pods[j].CreationTimestamp.Before(&pods[i].CreationTimestamp) })
	return pods
}
