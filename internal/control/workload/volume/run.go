package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyv1 "k8s.io/client-go/applyconfigurations/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	helper "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

type binder struct {
	controller.Env
	queue   *controller.Queue // keys: "c/" + claim, "v/" + volume
	events  record.EventRecorder
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// RunBinder binds claims and volumes until the context ends.
func RunBinder(ctx context.Context, e controller.Env) error {
	core, classes := e.Informers.Core().V1(), e.Informers.Storage().V1().StorageClasses()
	b := &binder{Env: e, queue: controller.NewQueue(), events: e.Recorder("persistentvolume-controller"),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), classes: classes.Lister()}
	x, err1 := controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, c *v1.PersistentVolumeClaim, gone bool) {
		b.queue.Add("c/" + controller.Key(c))
		if c.Spec.VolumeName != "" {
			b.queue.Add("v/" + c.Spec.VolumeName)
		}
	})
	y, err2 := controller.On(ctx, core.PersistentVolumes().Informer(), func(_, v *v1.PersistentVolume, gone bool) {
		b.queue.Add("v/" + v.Name)
		if r := v.Spec.ClaimRef; r != nil {
			b.queue.Add("c/" + r.Namespace + "/" + r.Name)
			return
		}
		b.pending(func(c *v1.PersistentVolumeClaim) bool {
			return helper.GetPersistentVolumeClaimClass(c) == helper.GetPersistentVolumeClass(v)
		})
	})
	z, err3 := controller.On(ctx, classes.Informer(), func(_, s *storagev1.StorageClass, _ bool) {
		b.pending(func(c *v1.PersistentVolumeClaim) bool { return helper.GetPersistentVolumeClaimClass(c) == s.Name })
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.Synced(ctx, x, y, z); err != nil {
		return nil
	}
	// One at a time: two claims must not be promised the same volume.
	return e.Run(ctx, b.queue, 1, b.sync)
}

// pending queues the unbound claims that a change may help.
func (b *binder) pending(helps func(*v1.PersistentVolumeClaim) bool) {
	all, err := b.claims.List(labels.Everything())
	if err != nil {
		return
	}
	for _, c := range all {
		if c.Status.Phase != v1.ClaimBound && helps(c) {
			b.queue.Add("c/" + controller.Key(c))
		}
	}
}

func (b *binder) sync(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, "v/"); ok {
		return 0, b.volume(ctx, name)
	}
	ns, name := controller.Split(strings.TrimPrefix(key, "c/"))
	return 0, b.claim(ctx, ns, name)
}

func (b *binder) claim(ctx context.Context, ns, name string) error {
	c, err := b.claims.PersistentVolumeClaims(ns).Get(name)
	if err != nil {
		return kube.IgnoreNotFound(err)
	}
	volumes, err := b.volumes.List(labels.Everything())
	if err != nil {
		return err
	}
	var class *storagev1.StorageClass
	if n := helper.GetPersistentVolumeClaimClass(c); n != "" {
		if class, err = b.classes.Get(n); apierrors.IsNotFound(err) {
			class = nil
		} else if err != nil {
			return err
		}
	}
	plan := forClaim(c, volumes, class)
	if plan.Event != nil {
		b.events.Event(c, plan.Event.Type, plan.Event.Reason, plan.Event.Message)
	}
	switch {
	case plan.Bind != nil:
		return b.bind(ctx, c, plan.Bind, plan.Because)
	case plan.Provisioner != "" && c.Annotations[provisionerAnnotation] != plan.Provisioner:
		change := kube.Change{Annotations: map[string]*string{provisionerAnnotation: &plan.Provisioner,
			betaProvisionerAnnotation: &plan.Provisioner}}
		if _, err := kube.Patch(ctx, b.Client.CoreV1().PersistentVolumeClaims(ns), c, kube.Unchanged, change); err != nil {
			return fmt.Errorf("handing claim %s to its provisioner: %w", controller.Key(c), err)
		}
		return nil
	case plan.Phase != c.Status.Phase:
		return b.claimStatus(ctx, c, v1.PersistentVolumeClaimStatus{Phase: plan.Phase})
	}
	return nil
}

// bind writes the four halves of a binding in the order that lets a crash in
// between be continued: the volume's reference and phase, then the claim's.
func (b *binder) bind(ctx context.Context, c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, because string) error {
	api := b.Client.CoreV1()
	var err error
	if r := pv.Spec.ClaimRef; r == nil || r.UID != c.UID {
		change := kube.Change{Spec: applyv1.PersistentVolumeSpec().WithClaimRef(applyv1.ObjectReference().WithKind("PersistentVolumeClaim").
			WithAPIVersion("v1").WithNamespace(c.Namespace).WithName(c.Name).WithUID(c.UID))}
		if r == nil {
			change.Annotations = map[string]*string{helper.AnnBoundByController: kube.To(yes)}
		}
		got, err := kube.Patch(ctx, api.PersistentVolumes(), pv, kube.Unchanged, change)
		if err != nil {
			return fmt.Errorf("binding volume %s to claim %s: %w", pv.Name, controller.Key(c), err)
		}
		pv = got
		b.Note("PersistentVolumeClaim", c, "bound to volume "+pv.Name, journal.Fact{Name: "because", Value: because})
	}
	if err := b.volumePhase(ctx, pv, v1.VolumeBound, ""); err != nil {
		return err
	}
	if c.Spec.VolumeName != pv.Name || c.Annotations[helper.AnnBindCompleted] == "" {
		notes := map[string]*string{helper.AnnBindCompleted: kube.To(yes)}
		if c.Spec.VolumeName == "" {
			notes[helper.AnnBoundByController] = kube.To(yes)
		}
		change := kube.Change{Annotations: notes, Spec: applyv1.PersistentVolumeClaimSpec().WithVolumeName(pv.Name)}
		if c, err = kube.Patch(ctx, api.PersistentVolumeClaims(c.Namespace), c, kube.Unchanged, change); err != nil {
			return fmt.Errorf("binding a claim to volume %s: %w", pv.Name, err)
		}
	}
	have := c.Status.Capacity[v1.ResourceStorage]
	want := pv.Spec.Capacity[v1.ResourceStorage]
	if c.Status.Phase == v1.ClaimBound && have.Sign() > 0 {
		return nil // a resize owns the capacity from here on
	}
	return b.claimStatus(ctx, c, v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: pv.Spec.AccessModes,
		Capacity: v1.ResourceList{v1.ResourceStorage: want}})
}

func (b *binder) claimStatus(ctx context.Context, c *v1.PersistentVolumeClaim, st v1.PersistentVolumeClaimStatus) error {
	_, err := kube.Patch(ctx, b.Client.CoreV1().PersistentVolumeClaims(c.Namespace), c, kube.Unchanged,
		kube.Change{Status: st, Subresource: "status"})
	if kube.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of claim %s: %w", controller.Key(c), err)
	}
	return nil
}

func (b *binder) volumePhase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, msg string) error {
	// A message that another party wrote stays while the phase does.
	if pv.Status.Phase == phase && (msg == "" || pv.Status.Message == msg) {
		return nil
	}
	// The message is written also when it is empty.
	st := applyv1.PersistentVolumeStatus().WithPhase(phase).WithMessage(msg)
	if pv.Status.Phase != phase {
		st.WithLastPhaseTransitionTime(metav1.Now())
	}
	if _, err := kube.Patch(ctx, b.Client.CoreV1().PersistentVolumes(), pv, kube.SameObject,
		kube.Change{Status: st, Subresource: "status"}); err != nil {
		return fmt.Errorf("writing the status of volume %s: %w", pv.Name, err)
	}
	return nil
}

func (b *binder) volume(ctx context.Context, name string) error {
	pv, err := b.volumes.Get(name)
	if err != nil {
		return kube.IgnoreNotFound(err)
	}
	var claim *v1.PersistentVolumeClaim
	if r := pv.Spec.ClaimRef; r != nil && r.UID != "" {
		claim, err = b.claims.PersistentVolumeClaims(r.Namespace).Get(r.Name)
		if err != nil || claim.UID != r.UID {
			// Releasing loses data: ask the server before believing a cache.
			claim, err = b.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				claim, err = nil, nil
			}
		}
		if err != nil {
			return fmt.Errorf("reading the claim of volume %s: %w", name, err)
		}
	}
	plan := forVolume(pv, claim)
	if plan.Unbind {
		change := kube.Change{Spec: map[string]any{"claimRef": nil}, Annotations: map[string]*string{helper.AnnBoundByController: nil}}
		if pv.Annotations[helper.AnnBoundByController] == "" {
			change = kube.Change{Spec: map[string]any{"claimRef": map[string]any{"uid": nil}}}
		}
		if pv, err = kube.Patch(ctx, b.Client.CoreV1().PersistentVolumes(), pv, kube.Unchanged, change); err != nil {
			return fmt.Errorf("freeing volume %s: %w", name, err)
		}
	}
	if plan.Event != nil {
		b.events.Event(pv, plan.Event.Type, plan.Event.Reason, plan.Event.Message)
	}
	if plan.Phase == "" {
		plan.Phase = v1.VolumePending
	}
	return b.volumePhase(ctx, pv, plan.Phase, plan.Message)
}
