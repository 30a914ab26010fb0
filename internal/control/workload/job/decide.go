package job

import (
	"fmt"
	"slices"
	"sort"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/podutil"
)

// decide ends the Job, or keeps the right number of pods running.
func (p *planner) decide() {
	p.endings()
	switch {
	case find(&p.st, batchv1.JobFailureTarget) != nil:
		p.finish(batchv1.JobFailed, find(&p.st, batchv1.JobFailureTarget))
	case find(&p.st, batchv1.JobSuccessCriteriaMet) != nil:
		p.finish(batchv1.JobComplete, find(&p.st, batchv1.JobSuccessCriteriaMet))
	case p.Job.Spec.Suspend != nil && *p.Job.Spec.Suspend:
		p.plan.Delete, p.plan.Uncount = p.active, true
	default:
		p.scale()
	}
}

// endings looks for a reason to end that is not announced yet. Failing comes
// before succeeding.
func (p *planner) endings() {
	if find(&p.st, batchv1.JobFailureTarget) != nil || find(&p.st, batchv1.JobSuccessCriteriaMet) != nil {
		return
	}
	spec := &p.Job.Spec
	suspended := spec.Suspend != nil && *spec.Suspend
	limit := 6
	if spec.BackoffLimit != nil {
		limit = int(*spec.BackoffLimit)
	}
	switch {
	case p.failed > limit || p.restartsBeyond(limit):
		p.target(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	case spec.ActiveDeadlineSeconds != nil && !suspended && p.st.StartTime != nil:
		left := p.st.StartTime.Add(time.Duration(*spec.ActiveDeadlineSeconds) * time.Second).Sub(p.Now)
		if left <= 0 {
			p.target(batchv1.JobFailureTarget, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
			return
		}
		p.wake(left)
	}
	if spec.BackoffLimitPerIndex != nil {
		if spec.MaxFailedIndexes != nil && len(p.broken) > int(*spec.MaxFailedIndexes) {
			p.target(batchv1.JobFailureTarget, batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
			return
		}
		if len(p.broken) > 0 && len(p.broken)+len(p.done) >= p.completions {
			p.target(batchv1.JobFailureTarget, batchv1.JobReasonFailedIndexes, "Job has failed indexes")
			return
		}
	}
	if p.indexed {
		if i := satisfied(spec.SuccessPolicy, p.done, p.completions); i >= 0 {
			p.target(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", i))
			return
		}
	}
	complete := false
	if p.completions < 0 {
		// A work queue: once one worker succeeded the others finish theirs.
		complete = p.succeeded > 0 && len(p.active) == 0
	} else {
		complete = p.succeeded >= p.completions
	}
	if complete {
		p.target(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
}

// restartsBeyond counts container restarts against the limit, for pods that
// restart in place.
func (p *planner) restartsBeyond(limit int) bool {
	if p.Job.Spec.Template.Spec.RestartPolicy != v1.RestartPolicyOnFailure {
		return false
	}
	sum := 0
	for _, pod := range p.active {
		if pod.Status.Phase != v1.PodRunning && pod.Status.Phase != v1.PodPending {
			continue
		}
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, c := range list {
				sum += int(c.RestartCount)
			}
		}
	}
	if limit == 0 {
		return sum > 0
	}
	return sum >= limit
}

func (p *planner) wake(d time.Duration) {
	if p.plan.Wake == 0 || d < p.plan.Wake {
		p.plan.Wake = max(d, time.Millisecond)
	}
}

// finish stops what still runs; when nothing does and everything is counted,
// the Job ends with the announced reason.
func (p *planner) finish(end batchv1.JobConditionType, why *batchv1.JobCondition) {
	p.plan.Delete = p.active
	if end == batchv1.JobComplete {
		p.plan.Uncount = true // surplus pods of a Job that succeeded did not fail
	}
	if len(p.active) > 0 || len(p.terminating) > 0 || p.st.UncountedTerminatedPods != nil || p.unnoted() {
		return
	}
	reason, msg := why.Reason, why.Message
	p.set(end, v1.ConditionTrue, reason, msg)
	if end == batchv1.JobComplete {
		now := metav1.NewTime(p.Now)
		p.st.CompletionTime = &now
		p.event(v1.EventTypeNormal, "Completed", "Job completed")
		return
	}
	p.event(v1.EventTypeWarning, reason, msg)
}

// unnoted says whether an ended pod's outcome is not in the status yet.
func (p *planner) unnoted() bool {
	noted := map[string]bool{}
	for _, f := range p.plan.Finished {
		noted[string(f.UID)] = true
	}
	for _, pods := range [][]*v1.Pod{p.donePods, p.failedPods} {
		for _, pod := range pods {
			if tracked(pod) && !noted[string(pod.UID)] {
				return true
			}
		}
	}
	return false
}

// scale keeps as many pods active as parallelism and what is left ask for.
func (p *planner) scale() {
	want := p.parallel
	switch {
	case p.completions < 0 && p.succeeded > 0:
		want = len(p.active) // let them finish, start no more
	case p.completions >= 0:
		want = min(p.parallel, p.completions-p.succeeded-len(p.broken))
	}
	want = max(want, 0)
	if gone := p.surplus(len(p.active) - want); len(gone) > 0 {
		p.plan.Delete, p.plan.Uncount = gone, true
		return
	}
	room := want - len(p.active)
	if p.onlyReplaceEnded() {
		room -= len(p.terminating)
	}
	room = min(room, podcontrol.Burst)
	if room <= 0 {
		return
	}
	if p.Job.Spec.BackoffLimitPerIndex == nil {
		if wait := p.pause(p.failedPods); wait > 0 {
			p.wake(wait)
			return
		}
	}
	if !p.indexed {
		for range room {
			p.plan.Create = append(p.plan.Create, podCreation{Index: -1})
		}
		return
	}
	p.createIndexes(room)
}

// createIndexes takes the lowest indexes that have no pod.
func (p *planner) createIndexes(room int) {
	busy := set{}
	for _, pod := range p.active {
		busy[completionIndex(pod)] = true
	}
	if p.onlyReplaceEnded() {
		for _, pod := range p.terminating {
			busy[completionIndex(pod)] = true
		}
	}
	for i := 0; i < p.completions && room > 0; i++ {
		if busy[i] || p.done[i] || p.broken[i] {
			continue
		}
		c := podCreation{Index: i}
		if p.Job.Spec.BackoffLimitPerIndex != nil {
			last, all := p.lastOf(i)
			if last != nil {
				c.Failures, c.Ignored = failures(last), ignored(last)
				if action, _ := matchFailurePolicy(p.Job.Spec.PodFailurePolicy, last); action == batchv1.PodFailurePolicyActionIgnore {
					c.Ignored++
				} else {
					c.Failures++
				}
				if wait := p.pause(all); wait > 0 {
					p.wake(wait)
					continue
				}
			}
		}
		p.plan.Create = append(p.plan.Create, c)
		room--
	}
}

// lastOf returns the failed pod of an index that carries the highest count,
// and all of them.
func (p *planner) lastOf(index int) (last *v1.Pod, all []*v1.Pod) {
	for _, pod := range p.failedPods {
		if completionIndex(pod) != index {
			continue
		}
		all = append(all, pod)
		if last == nil || failures(pod)+ignored(pod) > failures(last)+ignored(last) {
			last = pod
		}
	}
	return last, all
}

// duplicates are active pods whose index another one has, is done, or is out
// of range.
func (p *planner) duplicates() (out []*v1.Pod) {
	seen := set{}
	pods := append([]*v1.Pod(nil), p.active...)
	sort.SliceStable(pods, func(i, j int) bool { return pods[i].CreationTimestamp.Before(&pods[j].CreationTimestamp) })
	for _, pod := range pods {
		i := completionIndex(pod)
		if i < 0 || i >= p.completions || p.done[i] || p.broken[i] || seen[i] {
			out = append(out, pod)
			continue
		}
		seen[i] = true
	}
	return out
}

// surplus picks at least so many pods to end: first those whose index is not
// asked for (any more), then those with the least work behind them.
func (p *planner) surplus(least int) (gone []*v1.Pod) {
	if p.indexed {
		gone = p.duplicates()
	}
	if least <= len(gone) {
		return gone
	}
	rest := slices.DeleteFunc(slices.Clone(p.active), func(pod *v1.Pod) bool { return slices.Contains(gone, pod) })
	return append(gone, leastDone(rest)[:least-len(gone)]...)
}

// leastDone orders pods so that the ones with the least work behind them go
// first: not running, not ready, youngest.
func leastDone(pods []*v1.Pod) []*v1.Pod {
	pods = byCreation(pods)
	rank := func(p *v1.Pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 0
		case p.Status.Phase != v1.PodRunning:
			return 1
		case !podutil.Ready(p):
			return 2
		}
		return 3
	}
	sort.SliceStable(pods, func(i, j int) bool { return rank(pods[i]) < rank(pods[j]) })
	return pods
}
