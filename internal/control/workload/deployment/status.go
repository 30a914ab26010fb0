package deployment

import (
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// counts sums the sets' status into the Deployment's.
func (r *rollout) counts() appsv1.DeploymentStatus {
	st := *r.D.Status.DeepCopy()
	st.ObservedGeneration = r.D.Generation
	st.Replicas, st.UpdatedReplicas, st.ReadyReplicas, st.AvailableReplicas = 0, 0, 0, 0
	var leaving *int32
	for _, s := range r.Sets {
		st.Replicas += s.Status.Replicas
		st.ReadyReplicas += s.Status.ReadyReplicas
		st.AvailableReplicas += s.Status.AvailableReplicas
		if s.Status.TerminatingReplicas != nil {
			if leaving == nil {
				leaving = new(int32)
			}
			*leaving += *s.Status.TerminatingReplicas
		}
	}
	st.TerminatingReplicas = leaving
	if r.newSet != nil {
		st.UpdatedReplicas = r.newSet.Status.Replicas
	}
	// Of the pods asked for, so that ones still to be made count too.
	st.UnavailableReplicas = max(r.total()-st.AvailableReplicas, 0)
	return st
}

func (r *rollout) complete(st appsv1.DeploymentStatus) bool {
	return st.UpdatedReplicas == r.replicas && st.Replicas == r.replicas && st.AvailableReplicas == r.replicas &&
		st.ObservedGeneration >= r.D.Generation
}

func (r *rollout) status() {
	st := r.counts()
	if st.AvailableReplicas >= r.replicas-r.maxUnavailable {
		r.set(&st, appsv1.DeploymentAvailable, v1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		r.set(&st, appsv1.DeploymentAvailable, v1.ConditionFalse, "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.")
	}
	r.progress(&st)
	r.failure(&st)
	r.plan.Status = st
}

// progress keeps the Progressing condition and the time of its deadline.
func (r *rollout) progress(st *appsv1.DeploymentStatus) {
	limit := r.D.Spec.ProgressDeadlineSeconds
	if limit == nil || *limit == math.MaxInt32 {
		remove(st, appsv1.DeploymentProgressing)
		return
	}
	if r.D.DeletionTimestamp != nil {
		return
	}
	name := fmt.Sprintf("Deployment %q", r.D.Name)
	if r.newSet != nil {
		name = fmt.Sprintf("ReplicaSet %q", r.newSet.Name)
	}
	cur := condition(st, appsv1.DeploymentProgressing)
	const t = appsv1.DeploymentProgressing
	switch {
	case r.D.Spec.Paused:
		if cur == nil || cur.Reason != "DeploymentPaused" {
			r.set(st, t, v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused")
		}
		return
	case cur != nil && cur.Reason == "DeploymentPaused":
		r.set(st, t, v1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
		cur = condition(st, t)
	}
	done := cur != nil && cur.Reason == "NewReplicaSetAvailable" && st.Replicas == st.UpdatedReplicas
	switch {
	case r.creating() != nil:
		r.touch(st, "NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", r.creating().Name))
	case done:
	case r.complete(*st):
		r.touch(st, "NewReplicaSetAvailable", name+" has successfully progressed.")
	case r.advanced(st):
		r.touch(st, "ReplicaSetUpdated", name+" is progressing.")
	case cur == nil && r.newSet != nil:
		r.touch(st, "FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", r.newSet.Name))
	case cur != nil && r.timedOut(cur):
		r.set(st, t, v1.ConditionFalse, "ProgressDeadlineExceeded", name+" has timed out progressing.")
	}
	if cur = condition(st, t); cur != nil && cur.Reason != "NewReplicaSetAvailable" && cur.Reason != "ProgressDeadlineExceeded" {
		at := cur.LastUpdateTime.Add(time.Duration(*limit) * time.Second)
		// A second later, since API times have no fractions.
		r.plan.Wake = max(at.Sub(r.Now), 0) + time.Second
	}
}

func (r *rollout) creating() *appsv1.ReplicaSet {
	for _, s := range r.plan.Steps {
		if s.Verb == Create {
			return s.Set
		}
	}
	return nil
}

// advanced says whether the counts moved the right way since the last status.
func (r *rollout) advanced(st *appsv1.DeploymentStatus) bool {
	was := &r.D.Status
	return st.UpdatedReplicas > was.UpdatedReplicas ||
		st.Replicas-st.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		st.ReadyReplicas > was.ReadyReplicas || st.AvailableReplicas > was.AvailableReplicas
}

func (r *rollout) timedOut(c *appsv1.DeploymentCondition) bool {
	if c.Reason == "NewReplicaSetAvailable" {
		return false
	}
	if c.Reason == "ProgressDeadlineExceeded" {
		return true
	}
	return c.LastUpdateTime.Add(time.Duration(*r.D.Spec.ProgressDeadlineSeconds) * time.Second).Before(r.Now)
}

// failure mirrors the current set's ReplicaFailure, or an old one's.
func (r *rollout) failure(st *appsv1.DeploymentStatus) {
	find := func(s *appsv1.ReplicaSet) *appsv1.ReplicaSetCondition {
		for i := range s.Status.Conditions {
			if c := &s.Status.Conditions[i]; c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == v1.ConditionTrue {
				return c
			}
		}
		return nil
	}
	var found *appsv1.ReplicaSetCondition
	if r.newSet != nil {
		found = find(r.newSet)
	}
	for _, s := range r.old {
		if found == nil {
			found = find(s)
		}
	}
	if found == nil {
		remove(st, appsv1.DeploymentReplicaFailure)
		return
	}
	r.set(st, appsv1.DeploymentReplicaFailure, v1.ConditionTrue, found.Reason, found.Message)
}

// set writes a condition; an equal one stays as it is.
func (r *rollout) set(st *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType, s v1.ConditionStatus, reason, msg string) {
	now := metav1.NewTime(r.Now)
	if c := condition(st, t); c != nil {
		if c.Status == s && c.Reason == reason {
			return
		}
		if c.Status != s {
			c.LastTransitionTime = now
		}
		c.Status, c.Reason, c.Message, c.LastUpdateTime = s, reason, msg, now
		return
	}
	st.Conditions = append(st.Conditions, appsv1.DeploymentCondition{Type: t, Status: s, Reason: reason, Message: msg,
		LastUpdateTime: now, LastTransitionTime: now})
}

// touch records progress made: the update time moves even if nothing else does.
func (r *rollout) touch(st *appsv1.DeploymentStatus, reason, msg string) {
	r.set(st, appsv1.DeploymentProgressing, v1.ConditionTrue, reason, msg)
	c := condition(st, appsv1.DeploymentProgressing)
	c.Message, c.LastUpdateTime = msg, metav1.NewTime(r.Now)
}

func remove(st *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			st.Conditions = append(st.Conditions[:i:i], st.Conditions[i+1:]...)
			return
		}
	}
}
