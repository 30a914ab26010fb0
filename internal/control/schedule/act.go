package schedule

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	volumehelper "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// callTimeout bounds one API call made beside the loop.
const callTimeout = 30 * time.Second

// beside runs an API call outside the loop, in one of the slots.
func (l *loop) beside(ctx context.Context, f func(context.Context)) {
	l.calls.Go(func() {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		f(ctx)
	})
}

// bind writes the placement. The UID makes it fail rather than bind a
// successor of the same name.
func (l *loop) bind(ctx context.Context, f *flight) {
	pod, node, added := f.pod.Obj, f.node, f.added
	l.beside(ctx, func(ctx context.Context) {
		err := l.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     v1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err != nil {
			l.post(func() { l.failed(pod.UID, err.Error()) })
			return
		}
		l.metrics.attempts.WithLabelValues("scheduled").Inc()
		l.metrics.wait.Observe(time.Since(added).Seconds())
		l.recorder.Eventf(pod, v1.EventTypeNormal, "Scheduled", "Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
	})
}

// markUnschedulable writes the PodScheduled condition and the nominated node,
// if they differ from what the pod shows.
func (l *loop) markUnschedulable(ctx context.Context, pod *v1.Pod, msg, nominate string) {
	old := podutil.Condition(pod, v1.PodScheduled)
	if old != nil && old.Status == v1.ConditionFalse && old.Reason == v1.PodReasonUnschedulable && old.Message == msg &&
		(nominate == "" || pod.Status.NominatedNodeName == nominate) {
		return
	}
	cond := map[string]any{"type": v1.PodScheduled, "status": v1.ConditionFalse, "reason": v1.PodReasonUnschedulable,
		"message": msg, "lastTransitionTime": metav1.Now(), "observedGeneration": pod.Generation}
	if old != nil && old.Status == v1.ConditionFalse {
		cond["lastTransitionTime"] = old.LastTransitionTime
	}
	status := map[string]any{"conditions": []any{cond}}
	if nominate != "" {
		status["nominatedNodeName"] = nominate
	}
	change := kube.Change{Status: status, Subresource: "status", Strategic: true}
	l.beside(ctx, func(ctx context.Context) {
		_, err := kube.Patch(ctx, l.Client.CoreV1().Pods(pod.Namespace), pod, kube.SameObject, change)
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			l.Log.Warn("marking a pod unschedulable failed", "pod", controller.Key(pod), "err", err)
		}
	})
}

// preempt deletes the victims, each with a condition that says why.
func (l *loop) preempt(ctx context.Context, pod *v1.Pod, p *place.Preemption) {
	for _, victim := range p.Victims {
		if victim.DeletionTimestamp != nil {
			continue
		}
		l.beside(ctx, func(ctx context.Context) {
			why := applyv1.PodCondition().WithType(v1.DisruptionTarget).WithStatus(v1.ConditionTrue).WithReason(
				v1.PodReasonPreemptionByScheduler).
				WithMessage(l.Name + ": preempting to accommodate a higher priority pod").
				WithLastTransitionTime(metav1.Now()).WithObservedGeneration(victim.Generation)
			pods := l.Client.CoreV1().Pods(victim.Namespace)
			_, err := kube.Patch(ctx, pods, victim, kube.SameObject, kube.Change{Status: applyv1.PodStatus().WithConditions(why),
				Subresource: "status", Strategic: true})
			if err == nil {
				err = pods.Delete(ctx, victim.Name, kube.SameUID(victim))
			}
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				l.Log.Warn("preempting a pod failed", "pod", controller.Key(victim), "for", controller.Key(pod), "err", err)
				return
			}
			l.recorder.Eventf(victim, v1.EventTypeNormal, "Preempted", "Preempted by pod %s on node %s", pod.UID, p.Node)
		})
	}
}

// prepareVolumes reserves static volumes and hands claims to provisioners; the
// pod is bound once all its claims are.
func (l *loop) prepareVolumes(ctx context.Context, f *flight) {
	type reserve struct {
		pv    *v1.PersistentVolume
		claim *v1.PersistentVolumeClaim
	}
	var binds []reserve
	for _, b := range f.volumes.Bind {
		binds = append(binds, reserve{l.snap.Volume(b.Volume), l.snap.Claim(b.Claim)})
	}
	var provision []*v1.PersistentVolumeClaim
	for _, key := range f.volumes.Provision {
		provision = append(provision, l.snap.Claim(key))
	}
	uid, node := f.pod.Obj.UID, f.node
	l.beside(ctx, func(ctx context.Context) {
		for _, b := range binds {
			change := kube.Change{Annotations: map[string]*string{volumehelper.AnnBoundByController: kube.To("yes")},
				Spec: applyv1.PersistentVolumeSpec().WithClaimRef(applyv1.ObjectReference().WithKind(
					"PersistentVolumeClaim").WithAPIVersion("v1").
					WithNamespace(b.claim.Namespace).WithName(b.claim.Name).WithUID(b.claim.UID))}
			if _, err := kube.Patch(ctx, l.Client.CoreV1().PersistentVolumes(), b.pv, kube.Unchanged, change); err != nil {
				l.post(func() { l.failed(uid, err.Error()) })
				return
			}
		}
		for _, c := range provision {
			if c.Annotations[volumehelper.AnnSelectedNode] == node {
				continue
			}
			change := kube.Change{Annotations: map[string]*string{volumehelper.AnnSelectedNode: &node}}
			if _, err := kube.Patch(ctx, l.Client.CoreV1().PersistentVolumeClaims(c.Namespace), c, kube.Unchanged, change); err != nil {
				l.post(func() { l.failed(uid, err.Error()) })
				return
			}
		}
	})
}

// volumesProgress binds the pods that waited for this claim, or takes their
// placement back when a provisioner gave the claim up.
func (l *loop) volumesProgress(ctx context.Context, c *v1.PersistentVolumeClaim) {
	key := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
	for uid, f := range l.flights {
		if !f.pending {
			continue
		}
		mine, ready := false, true
		for _, k := range f.volumes.Claims() {
			mine = mine || k == key
			claim := l.snap.Claim(k)
			ready = ready && claim != nil && bound(claim)
		}
		switch {
		case !mine:
		case ready:
			f.pending = false
			l.bind(ctx, f)
		case f.handed[key] && c.Annotations[volumehelper.AnnSelectedNode] == "":
			l.failed(uid, "the provisioner cannot make claim "+key.String()+" for this node")
		case c.Annotations[volumehelper.AnnSelectedNode] == f.node:
			if f.handed == nil {
				f.handed = map[types.NamespacedName]bool{}
			}
			f.handed[key] = true
		}
	}
}

// clearSelectedNode frees the claims of a placement that is given up.
func (l *loop) clearSelectedNode(ctx context.Context, f *flight) {
	for _, key := range f.volumes.Provision {
		c := l.snap.Claim(key)
		if c == nil || bound(c) || c.Annotations[volumehelper.AnnSelectedNode] != f.node {
			continue
		}
		change := kube.Change{Annotations: map[string]*string{volumehelper.AnnSelectedNode: nil}}
		l.beside(ctx, func(ctx context.Context) {
			if _, err := kube.Patch(ctx, l.Client.CoreV1().PersistentVolumeClaims(c.Namespace), c, kube.Unchanged, change); err != nil {
				l.Log.Warn("clearing the selected node of a claim failed", "claim", controller.Key(c), "err", err)
			}
		})
	}
}
