package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/podutil"
)

// ephemeralClaims makes the claims of a pod's ephemeral volumes: owned by the
// pod, so that they go with it. A pod that is ending gets none.
func ephemeralClaims(p *v1.Pod) (out []*v1.PersistentVolumeClaim) {
	if !podutil.Active(p) {
		return nil
	}
	yes := true
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		t := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
		out = append(out, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: ephemeral.VolumeClaimName(p, v),
			Namespace: p.Namespace,
			Labels:    t.Labels, Annotations: t.Annotations, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod",
				Name: p.Name, UID: p.UID,
				Controller: &yes, BlockOwnerDeletion: &yes}}}, Spec: t.Spec})
	}
	return out
}

// RunEphemeral makes the claims of ephemeral volumes until the context ends.
func RunEphemeral(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	events := e.Recorder("ephemeral_volume")
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, core.Pods().Informer(), func(_, p *v1.Pod, gone bool) {
		if !gone && len(ephemeralClaims(p)) > 0 {
			q.Add(controller.Key(p))
		}
	})
	b, err2 := controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, c *v1.PersistentVolumeClaim, gone bool) {
		if ref := metav1.GetControllerOfNoCopy(c); gone && ref != nil && ref.Kind == "Pod" {
			q.Add(c.Namespace + "/" + ref.Name)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	sync := func(ctx context.Context, p *v1.Pod) (time.Duration, error) {
		var errs []error
		for _, want := range ephemeralClaims(p) {
			have, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(p.Namespace).Get(want.Name)
			if err == nil {
				if !metav1.IsControlledBy(have, p) {
					errs = append(errs, fmt.Errorf("claim %s exists and is not made for pod %s", controller.Key(have), controller.Key(p)))
				}
				continue
			}
			_, err = e.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Create(ctx, want, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
				events.Eventf(p, v1.EventTypeWarning, "FailedCreate", "ephemeral volume: create PVC %s: %v", want.Name, err)
				errs = append(errs, fmt.Errorf("creating claim %s/%s: %w", p.Namespace, want.Name, err))
			}
		}
		return 0, errors.Join(errs...)
	}
	return e.Run(ctx, q, 2, controller.Existing(core.Pods().Informer().GetIndexer(), sync))
}
