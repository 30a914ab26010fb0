package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// The finalizers that keep claims and volumes while they are in use.
const (
	ClaimFinalizer  = "kubernetes.io/pvc-protection"
	VolumeFinalizer = "kubernetes.io/pv-protection"
)

// uses says whether a pod keeps a claim from going: it is on a node, or may
// still get there, and has not ended.
func uses(p *v1.Pod, claim string) bool {
	if podutil.Terminal(p) {
		return false
	}
	for _, v := range p.Spec.Volumes {
		if (v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim) ||
			(v.Ephemeral != nil && p.Name+"-"+v.Name == claim) {
			return p.Spec.NodeName != ""
		}
	}
	return false
}

// RunClaimProtection keeps the finalizer of claims until the context ends.
func RunClaimProtection(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, c *v1.PersistentVolumeClaim,
		_ bool) {
		q.Add(controller.Key(c))
	})
	b, err2 := controller.On(ctx, core.Pods().Informer(), func(_, p *v1.Pod, gone bool) {
		if !gone && !podutil.Terminal(p) {
			return
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				q.Add(p.Namespace + "/" + v.PersistentVolumeClaim.ClaimName)
			} else if v.Ephemeral != nil {
				q.Add(p.Namespace + "/" + p.Name + "-" + v.Name)
			}
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	sync := func(ctx context.Context, c *v1.PersistentVolumeClaim) (time.Duration, error) {
		used := false
		if c.DeletionTimestamp != nil && slices.Contains(c.Finalizers, ClaimFinalizer) {
			pods, err := core.Pods().Lister().Pods(c.Namespace).List(labels.Everything())
			if err != nil {
				return 0, err
			}
			used = slices.ContainsFunc(pods, func(p *v1.Pod) bool { return uses(p, c.Name) })
			if !used {
				// The cache may be behind a pod that was bound just now.
				live, err := e.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return 0, fmt.Errorf("listing pods that may use claim %s: %w", controller.Key(c), err)
				}
				for i := range live.Items {
					used = used || uses(&live.Items[i], c.Name)
				}
			}
		}
		change := protect(c, ClaimFinalizer, used)
		if change == nil {
			return 0, nil
		}
		_, err := kube.Patch(ctx, e.Client.CoreV1().PersistentVolumeClaims(c.Namespace), c, kube.Unchanged, *change)
		if kube.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("guarding claim %s: %w", controller.Key(c), err)
		}
		return 0, nil
	}
	return e.Run(ctx, q, 2, controller.Existing(core.PersistentVolumeClaims().Informer().GetIndexer(), sync))
}

// RunVolumeProtection keeps the finalizer of volumes until the context ends.
func RunVolumeProtection(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Core().V1().PersistentVolumes()
	q := controller.NewQueue()
	a, err := controller.On(ctx, inf.Informer(), func(_, v *v1.PersistentVolume, _ bool) { q.Add(v.Name) })
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, a); err != nil {
		return nil
	}
	sync := func(ctx context.Context, v *v1.PersistentVolume) (time.Duration, error) {
		change := protect(v, VolumeFinalizer, v.Status.Phase == v1.VolumeBound)
		if change == nil {
			return 0, nil
		}
		_, err := kube.Patch(ctx, e.Client.CoreV1().PersistentVolumes(), v, kube.Unchanged, *change)
		if kube.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("guarding volume %s: %w", v.Name, err)
		}
		return 0, nil
	}
	return e.Run(ctx, q, 2, controller.Existing(inf.Informer().GetIndexer(), sync))
}

// protect adds the finalizer to a living object, and takes it off a dying one
// that no one uses; nil means nothing to do.
func protect(o metav1.Object, finalizer string, used bool) *kube.Change {
	have := slices.Contains(o.GetFinalizers(), finalizer)
	switch {
	case o.GetDeletionTimestamp() == nil && !have:
		more := append(slices.Clone(o.GetFinalizers()), finalizer)
		return &kube.Change{Finalizers: &more}
	case o.GetDeletionTimestamp() != nil && have && !used:
		keep := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer })
		return &kube.Change{Finalizers: &keep}
	}
	return nil
}
