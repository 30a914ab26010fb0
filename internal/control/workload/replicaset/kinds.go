package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

func fromReplicaSet(e controller.Env, rs *appsv1.ReplicaSet) *object {
	o := &object{meta: rs, obj: rs, kind: "ReplicaSet", ref: podcontrol.Owner(rs, "apps/v1", "ReplicaSet"), template: &rs.Spec.Template}
	if sel, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector); err == nil {
		o.selector = sel
	}
	o.set = Set{Replicas: one(rs.Spec.Replicas), MinReady: rs.Spec.MinReadySeconds, Generation: rs.Generation,
		TemplateLabels: rs.Spec.Template.Labels, Deleting: rs.DeletionTimestamp != nil, Status: rs.Status}
	if c := metav1.GetControllerOfNoCopy(rs); c != nil && c.Kind == "Deployment" {
		o.family = c.UID
	}
	api := e.Client.AppsV1().ReplicaSets(rs.Namespace)
	o.live = func(ctx context.Context) (metav1.Object, error) { return api.Get(ctx, rs.Name, metav1.GetOptions{}) }
	o.patchStatus = func(ctx context.Context, st status) error {
		_, _, err := kube.PatchStatus(ctx, api, rs, rs.Status, st)
		return err
	}
	return o
}

func fromReplicationController(e controller.Env, rc *v1.ReplicationController) *object {
	o := &object{meta: rc, obj: rc, kind: "ReplicationController", ref: podcontrol.Owner(rc, "v1", "ReplicationController"),
		selector: labels.SelectorFromSet(rc.Spec.Selector), template: rc.Spec.Template}
	if o.template == nil {
		o.template = &v1.PodTemplateSpec{}
	}
	o.set = Set{Replicas: one(rc.Spec.Replicas), MinReady: rc.Spec.MinReadySeconds, Generation: rc.Generation,
		TemplateLabels: o.template.Labels, Deleting: rc.DeletionTimestamp != nil, Status: status{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas, ReadyReplicas: rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration}}
	for _, c := range rc.Status.Conditions {
		o.set.Status.Conditions = append(o.set.Status.Conditions, appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetConditionType(c.Type),
			Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	api := e.Client.CoreV1().ReplicationControllers(rc.Namespace)
	o.live = func(ctx context.Context) (metav1.Object, error) { return api.Get(ctx, rc.Name, metav1.GetOptions{}) }
	o.patchStatus = func(ctx context.Context, st status) error {
		next := v1.ReplicationControllerStatus{Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas,
			ReadyReplicas: st.ReadyReplicas, AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration}
		for _, c := range st.Conditions {
			next.Conditions = append(next.Conditions, v1.ReplicationControllerCondition{Type: v1.ReplicationControllerConditionType(c.Type),
				Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
		}
		_, _, err := kube.PatchStatus(ctx, api, rc, rc.Status, next)
		return err
	}
	return o
}

func one(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
