package why

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owned are the pods of an owner.
func owned(w *World, o metav1.Object) (out []*v1.Pod) {
	for _, p := range all[v1.Pod](w) {
		if metav1.IsControlledBy(p, o) {
			out = append(out, p)
		}
	}
	return out
}

// refused tells why an owner's pods are not created, from its events or
// condition: quota, limits, policy, a webhook.
func refused(kind, name, message string) *Answer {
	m := brief(strings.TrimPrefix(strings.TrimPrefix(message, "Error creating: "), "create Pod "), 260)
	if i := strings.Index(m, "is forbidden: "); i >= 0 {
		m = m[i+len("is forbidden: "):]
	}
	named := func(expr string) string {
		if g := regexp.MustCompile(expr).FindStringSubmatch(m); g != nil {
			return g[1]
		}
		return "?"
	}
	own := fmt.Sprintf("pods of %s %s are refused: ", kind, name)
	switch {
	case strings.Contains(m, "exceeded quota"), strings.Contains(m, "failed quota"):
		return found(Failing, "Quota", "%sResourceQuota %s: %s", own, named(`quota: ([^,:]+)`), m).at("spec.hard of the ResourceQuota").
			remedy("raise the quota, or ask for less")
	case strings.Contains(m, "PodSecurity"):
		return found(Failing, "PodSecurity", "%snamespace label pod-security.kubernetes.io/enforce: %s", own, m).
			at("spec.template.spec.securityContext").remedy("meet the level, or loosen the namespace's label")
	case strings.Contains(m, "admission webhook"), strings.Contains(m, "failed calling webhook"):
		return found(Failing, "Webhook", "%swebhook %s: %s", own, named(`webhook "([^"]+)"`), m).
			remedy("start the webhook's Service, or change its failurePolicy")
	case strings.Contains(m, "ValidatingAdmissionPolicy"):
		return found(Failing, "AdmissionPolicy", "%s%s", own, m)
	case strings.Contains(m, "usage per "), strings.Contains(m, "limit to request ratio"):
		return found(Failing, "LimitRange", "%sa LimitRange of the namespace: %s", own, m).at("spec.template.spec.containers[].resources").
			remedy("stay within the LimitRange, or change it")
	case strings.Contains(m, "serviceaccount") && strings.Contains(m, "not found"):
		return found(Failing, "ServiceAccountMissing", "%sServiceAccount %s does not exist", own,
			named(`serviceaccounts? "([^"]+)"`)).at("spec.template.spec.serviceAccountName").remedy("create the ServiceAccount")
	case strings.Contains(m, "PriorityClass"):
		return found(Failing, "PriorityClassMissing", "%sPriorityClass: %s", own, m).at("spec.template.spec.priorityClassName")
	}
	return found(Failing, "Refused", "%s%s", own, m)
}

// refusedByEvents is refused for the newest FailedCreate event.
func refusedByEvents(w *World, kind, namespace, name string) *Answer {
	if e := lastEvent(w.events(kind, namespace, name), "FailedCreate"); e != nil {
		return refused(kind, name, e.Message).held(kind, namespace, name).from("events").
			fact("event", "FailedCreate, %d times, last %s ago", max(e.Count, 1), Age(w.Now, eventTime(e)))
	}
	return nil
}

// worstPod explains the pod of a set that says most: one that fails before one
// that waits.
func worstPod(w *World, pods []*v1.Pod) *Answer {
	var best *Answer
	for _, p := range pods {
		a := explainPod(w, p.Namespace, p.Name)
		if a == nil || a.State == Healthy || a.Code == "Succeeded" {
			continue
		}
		a.Cause = "pod " + p.Name + ": " + a.Cause
		a.held("Pod", p.Namespace, p.Name)
		if best == nil || best.State != Failing && a.State == Failing {
			best = a
		}
	}
	return best
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// unobserved tells that no controller has looked at an object's last change.
func unobserved(kind string, generation, observed int64) *Answer {
	if observed >= generation {
		return nil
	}
	return found(Waiting, "NotObserved", "the %s controller has not looked at the last change (generation %d, observed %d)", kind,
		generation,
		observed).at("status.observedGeneration").remedy("berth status tells whether the controllers run")
}

func explainDeployment(w *World, namespace, name string) *Answer {
	d := one[appsv1.Deployment](w, namespace, name)
	if d == nil {
		return nil
	}
	want, st := replicas(d.Spec.Replicas), d.Status
	shape := func(a *Answer) *Answer {
		return a.fact("replicas", "%d wanted, %d updated, %d ready, %d available", want, st.UpdatedReplicas, st.ReadyReplicas,
			st.AvailableReplicas).from("Deployment")
	}
	if a := unobserved("deployment", d.Generation, st.ObservedGeneration); a != nil {
		return shape(a)
	}
	var sets []*appsv1.ReplicaSet
	for _, r := range all[appsv1.ReplicaSet](w) {
		if metav1.IsControlledBy(r, d) {
			sets = append(sets, r)
		}
	}
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Compare(b.CreationTimestamp.UnixNano(), a.CreationTimestamp.UnixNano())
	})
	if st.UpdatedReplicas == want && st.AvailableReplicas >= want && st.Replicas == want {
		if want == 0 {
			return shape(found(Healthy, "ScaledToZero", "it is scaled to 0 (spec.replicas): it wants no pods").at("spec.replicas"))
		}
		return shape(found(Healthy, "Healthy", "nothing is wrong: %d of %d replicas are available", st.AvailableReplicas, want))
	}
	for _, c := range st.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == v1.ConditionTrue {
			return shape(refused("Deployment", name, c.Message).from("events"))
		}
	}
	for _, r := range sets {
		if replicas(r.Spec.Replicas) == 0 {
			continue
		}
		if int(replicas(r.Spec.Replicas)) > len(owned(w, r)) {
			if a := refusedByEvents(w, "ReplicaSet", namespace, r.Name); a != nil {
				return shape(a)
			}
		}
		if a := worstPod(w, owned(w, r)); a != nil {
			return shape(a.from("ReplicaSet"))
		}
	}
	if d.Spec.Paused {
		return shape(found(Waiting, "Paused", "it is paused (spec.paused): changes of its template are not rolled out").at("spec.paused").
			remedy("berth kubectl rollout resume deployment %s -n %s", name, namespace))
	}
	for _, c := range st.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == v1.ConditionFalse {
			return shape(found(Failing, c.Reason, "it does not progress: %s", brief(c.Message, 200)).at("spec.progressDeadlineSeconds"))
		}
	}
	return shape(found(Waiting, "Progressing", "it rolls out: %d of %d replicas are updated, %d available", st.UpdatedReplicas, want,
		st.AvailableReplicas))
}

func explainReplicaSet(w *World, namespace, name string) *Answer {
	r := one[appsv1.ReplicaSet](w, namespace, name)
	if r == nil {
		return nil
	}
	for _, c := range r.Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == v1.ConditionTrue {
			return refused("ReplicaSet", name, c.Message).from("ReplicaSet")
		}
	}
	return setOf(w, "ReplicaSet", r, replicas(r.Spec.Replicas), r.Status.ReadyReplicas)
}

// setOf explains what keeps a number of pods.
func setOf(w *World, kind string, o metav1.Object, want, ready int32) *Answer {
	pods := owned(w, o)
	var a *Answer
	if int(want) > len(pods) {
		a = refusedByEvents(w, kind, o.GetNamespace(), o.GetName())
	}
	if a == nil && ready < want {
		a = worstPod(w, pods)
	}
	switch {
	case a != nil:
	case ready >= want:
		a = found(Healthy, "Healthy", "nothing is wrong: %d of %d replicas are ready", ready, want)
	default:
		a = found(Waiting, "Starting", "%d of %d replicas are ready; %d pods exist and none of them failed", ready, want, len(pods))
	}
	return a.fact("replicas", "%d wanted, %d exist, %d ready", want, len(pods), ready).from(kind)
}

func explainStatefulSet(w *World, namespace, name string) *Answer {
	s := one[appsv1.StatefulSet](w, namespace, name)
	if s == nil {
		return nil
	}
	if a := unobserved("statefulset", s.Generation, s.Status.ObservedGeneration); a != nil {
		return a
	}
	a := setOf(w, "StatefulSet", s, replicas(s.Spec.Replicas), s.Status.ReadyReplicas)
	if a.Holder != nil && s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && a.Holder.Kind == "Pod" {
		a.fact("order", "OrderedReady: later pods wait for %s", a.Holder.Name)
	}
	return a
}

func explainDaemonSet(w *World, namespace, name string) *Answer {
	d := one[appsv1.DaemonSet](w, namespace, name)
	if d == nil {
		return nil
	}
	if a := unobserved("daemonset", d.Generation, d.Status.ObservedGeneration); a != nil {
		return a
	}
	if d.Status.DesiredNumberScheduled == 0 {
		p := &v1.Pod{Spec: d.Spec.Template.Spec}
		for _, n := range all[v1.Node](w) {
			if reason, field := refusal(w, p, n); reason != "" {
				return found(Failing, "NoNodeFits", "it wants 0 pods: no node matches, %s: %s", n.Name, reason).at("spec.template."+field).
					from("DaemonSet", "Node")
			}
		}
	}
	return setOf(w, "DaemonSet", d, d.Status.DesiredNumberScheduled, d.Status.NumberReady)
}

func explainJob(w *World, namespace, name string) *Answer {
	j := one[batchv1.Job](w, namespace, name)
	if j == nil {
		return nil
	}
	return job(w, j).fact("pods", "%d active, %d succeeded, %d failed", j.Status.Active, j.Status.Succeeded, j.Status.Failed).from("Job")
}

func job(w *World, j *batchv1.Job) *Answer {
	pods := owned(w, j)
	for _, c := range j.Status.Conditions {
		if c.Status != v1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			return found(Ended, "Complete", "the job completed: %s", brief(cmp.Or(c.Message, "all pods succeeded"), 160))
		case batchv1.JobFailed, batchv1.JobFailureTarget:
			return jobFailed(w, j, c, pods)
		case batchv1.JobSuspended:
			return found(Waiting, "Suspended", "it is suspended (spec.suspend): no pods are made").at("spec.suspend").
				remedy("berth kubectl patch job %s -n %s -p '{\"spec\":{\"suspend\":false}}'", j.Name, j.Namespace)
		}
	}
	if j.Spec.Suspend != nil && *j.Spec.Suspend {
		return found(Waiting, "Suspended", "it is suspended (spec.suspend): no pods are made").at("spec.suspend")
	}
	if len(pods) == 0 {
		if a := refusedByEvents(w, "Job", j.Namespace, j.Name); a != nil {
			return a
		}
	}
	if a := worstPod(w, pods); a != nil {
		return a
	}
	return found(Healthy, "Running", "it runs: nothing has failed")
}

// jobFailed names the rule that ended a job, and how its pods failed.
func jobFailed(w *World, j *batchv1.Job, c batchv1.JobCondition, pods []*v1.Pod) *Answer {
	limit := int32(6)
	if j.Spec.BackoffLimit != nil {
		limit = *j.Spec.BackoffLimit
	}
	var a *Answer
	switch c.Reason {
	case batchv1.JobReasonBackoffLimitExceeded:
		a = found(Ended, c.Reason, "more pods failed than backoffLimit %d allows", limit).at("spec.backoffLimit")
	case batchv1.JobReasonDeadlineExceeded:
		d := int64(0)
		if j.Spec.ActiveDeadlineSeconds != nil {
			d = *j.Spec.ActiveDeadlineSeconds
		}
		a = found(Ended, c.Reason, "it ran longer than activeDeadlineSeconds %d", d).at("spec.activeDeadlineSeconds")
	case batchv1.JobReasonPodFailurePolicy:
		a = found(Ended, c.Reason, "podFailurePolicy ended it: %s", brief(c.Message, 160)).at("spec.podFailurePolicy")
	default:
		a = found(Ended, cmp.Or(c.Reason, "Failed"), "it failed: %s: %s", c.Reason, brief(c.Message, 160))
	}
	if p := worstPod(w, pods); p != nil {
		a.Cause += "; " + p.Cause
		a.Facts = append(a.Facts, p.Facts...)
		a.from(p.Sources...)
	}
	return a
}

func explainCronJob(w *World, namespace, name string) *Answer {
	c := one[batchv1.CronJob](w, namespace, name)
	if c == nil {
		return nil
	}
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		return found(Waiting, "Suspended", "it is suspended (spec.suspend): no jobs are made").at("spec.suspend").from("CronJob")
	}
	if a := refusedByEvents(w, "CronJob", namespace, name); a != nil {
		return a
	}
	if e := lastEvent(w.events("CronJob", namespace, name), "UnParseableCronJobSchedule", "UnparseableSchedule", "InvalidSchedule",
		"UnknownTimeZone", "TooManyMissedTimes", "MissSchedule", "JobAlreadyActive"); e != nil {
		return found(Failing, e.Reason, "%s", brief(e.Message, 200)).at("spec.schedule").from("CronJob", "events")
	}
	var last *batchv1.Job
	for _, j := range all[batchv1.Job](w) {
		if metav1.IsControlledBy(j, c) && (last == nil || j.CreationTimestamp.After(last.CreationTimestamp.Time)) {
			last = j
		}
	}
	if last == nil {
		return found(Healthy, "NotDue", "no job was made yet: the schedule %q has not come due", c.Spec.Schedule).at("spec.schedule").
			from("CronJob")
	}
	a := job(w, last)
	a.Cause = "last job " + last.Name + ": " + a.Cause
	return a.held("Job", namespace, last.Name).from("CronJob", "Job")
}
