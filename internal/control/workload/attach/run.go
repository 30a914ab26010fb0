package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// managed is the annotation by which a node leaves attaching to this
// controller.
const managed = "volumes.kubernetes.io/controller-managed-attach-detach"

const (
	byNode   = "attach-node"
	byVolume = "attach-volume"
)

type reconciler struct {
	controller.Env
	queue       *controller.Queue
	events      record.EventRecorder
	pods        cache.SharedIndexInformer
	attachments cache.SharedIndexInformer

	mu   sync.Mutex
	idle map[types.UID]time.Time // attachment -> first seen unneeded
}

// Run attaches and detaches until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	core, storage := e.Informers.Core().V1(), e.Informers.Storage().V1()
	c := &reconciler{Env: e, queue: controller.NewQueue(), events: e.Recorder("attachdetach-controller"), pods: core.Pods().Informer(),
		attachments: storage.VolumeAttachments().Informer(), idle: map[types.UID]time.Time{}}
	if err := c.index(); err != nil {
		return err
	}
	var done []cache.DoneChecker
	var errs []error
	on := func(d cache.DoneChecker, err error) { done, errs = append(done, d), append(errs, err) }
	on(controller.On(ctx, core.Nodes().Informer(), func(old, n *v1.Node, gone bool) {
		if old == nil || gone || !equality.Semantic.DeepEqual(old.Status.VolumesInUse, n.Status.VolumesInUse) ||
			!equality.Semantic.DeepEqual(old.Status.VolumesAttached, n.Status.VolumesAttached) ||
			!equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) {
			c.queue.Add(n.Name)
		}
	}))
	on(controller.On(ctx, c.pods, func(old, p *v1.Pod, gone bool) {
		if p.Spec.NodeName != "" && usesClaims(p) && (old == nil || gone || old.Spec.NodeName != p.Spec.NodeName ||
			holds(old) != holds(p)) {
			c.queue.Add(p.Spec.NodeName)
		}
	}))
	on(controller.On(ctx, core.PersistentVolumeClaims().Informer(), func(_, pvc *v1.PersistentVolumeClaim, _ bool) { c.claimChanged(pvc) }))
	on(controller.On(ctx, core.PersistentVolumes().Informer(), func(_, _ *v1.PersistentVolume, _ bool) {}))
	on(controller.On(ctx, storage.CSIDrivers().Informer(), func(_, _ *storagev1.CSIDriver, _ bool) {}))
	on(controller.On(ctx, c.attachments, func(old, a *storagev1.VolumeAttachment, gone bool) {
		c.queue.Add(a.Spec.NodeName)
		if old != nil {
			c.recordAttachment(old, a)
		}
		if gone && a.Spec.Source.PersistentVolumeName != nil {
			c.wanting(*a.Spec.Source.PersistentVolumeName)
		}
	}))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := e.Synced(ctx, done...); err != nil {
		return nil
	}
	return e.Run(ctx, c.queue, 4, c.sync)
}

func (c *reconciler) index() error {
	err1 := kube.Index(c.pods, cache.Indexers{byNode: func(o any) ([]string, error) {
		if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName != "" && usesClaims(p) {
			return []string{p.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	err2 := kube.Index(c.attachments, cache.Indexers{
		byNode: func(o any) ([]string, error) { return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName}, nil },
		byVolume: func(o any) ([]string, error) {
			if n := o.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName; n != nil {
				return []string{*n}, nil
			}
			return nil, nil
		}})
	return errors.Join(err1, err2)
}

func usesClaims(p *v1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	return false
}

// holds says whether a pod needs its volumes: until it has ended.
func holds(p *v1.Pod) bool {
	return !podutil.Terminal(p)
}

// claimChanged looks at the nodes of the pods that use a claim.
func (c *reconciler) claimChanged(pvc *v1.PersistentVolumeClaim) {
	for _, p := range podcontrol.Indexed[*v1.Pod](c.pods, cache.NamespaceIndex, pvc.Namespace) {
		if p.Spec.NodeName == "" {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if (v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == pvc.Name) ||
				(v.Ephemeral != nil && p.Name+"-"+v.Name == pvc.Name) {
				c.queue.Add(p.Spec.NodeName)
			}
		}
	}
}

// wanting looks at the nodes that may have waited for a volume to come free.
func (c *reconciler) wanting(pv string) {
	v, err := c.Informers.Core().V1().PersistentVolumes().Lister().Get(pv)
	if err != nil || v.Spec.ClaimRef == nil {
		return
	}
	c.claimChanged(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v.Spec.ClaimRef.Namespace,
		Name: v.Spec.ClaimRef.Name}})
}

// recordAttachment records events on the pods that wait for a volume: it is attached,
// or why it cannot be.
func (c *reconciler) recordAttachment(old, a *storagev1.VolumeAttachment) {
	if a.Spec.Source.PersistentVolumeName == nil {
		return
	}
	pv := *a.Spec.Source.PersistentVolumeName
	kind, reason, message := v1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", pv)
	switch e := a.Status.AttachError; {
	case a.Status.Attached && !old.Status.Attached:
	case e != nil && !a.Status.Attached && !equality.Semantic.DeepEqual(e, old.Status.AttachError):
		kind, reason, message = v1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", pv,
			e.Message)
	default:
		return
	}
	for _, p := range podcontrol.Indexed[*v1.Pod](c.pods, byNode, a.Spec.NodeName) {
		for _, v := range c.volumes(p) {
			if v.PV == pv {
				c.events.Event(p, kind, reason, message)
			}
		}
	}
}

// volumes lists the attachable volumes of a pod.
func (c *reconciler) volumes(p *v1.Pod) (out []volume) {
	core := c.Informers.Core().V1()
	for _, v := range p.Spec.Volumes {
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = p.Name + "-" + v.Name
		default:
			continue
		}
		claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil || claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound {
			continue
		}
		pv, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
		if err != nil {
			continue
		}
		if vol, ok := c.volume(pv); ok {
			out = append(out, vol)
		}
	}
	return out
}

func (c *reconciler) volume(pv *v1.PersistentVolume) (volume, bool) {
	if pv.Spec.CSI == nil {
		return volume{}, false
	}
	d, err := c.Informers.Storage().V1().CSIDrivers().Lister().Get(pv.Spec.CSI.Driver)
	if err == nil && d.Spec.AttachRequired != nil && !*d.Spec.AttachRequired {
		return volume{}, false
	}
	v := volume{PV: pv.Name, Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}
	for _, m := range pv.Spec.AccessModes {
		v.Shared = v.Shared || m == v1.ReadWriteMany || m == v1.ReadOnlyMany
	}
	return v, true
}

func (c *reconciler) sync(ctx context.Context, name string) (time.Duration, error) {
	core := c.Informers.Core().V1()
	in := input{Name: name, Want: map[string]volume{}, Elsewhere: map[string]string{}, Now: time.Now()}
	node, err := core.Nodes().Lister().Get(name)
	switch {
	case err == nil:
		in.Node = node
		if node.Annotations[managed] != "true" {
			return 0, nil
		}
	case !apierrors.IsNotFound(err):
		return 0, err
	}
	users := map[string]*v1.Pod{}
	for _, p := range podcontrol.Indexed[*v1.Pod](c.pods, byNode, name) {
		if !holds(p) {
			continue
		}
		for _, v := range c.volumes(p) {
			in.Want[v.PV], users[v.PV] = v, p
		}
	}
	for pv := range in.Want {
		for _, a := range podcontrol.Indexed[*storagev1.VolumeAttachment](c.attachments, byVolume, pv) {
			if a.Spec.NodeName != name {
				in.Elsewhere[pv] = a.Spec.NodeName
			}
		}
	}
	in.Have = c.have(name, in.Want, in.Now)
	plan := makePlan(in)
	for pv, other := range plan.Refused {
		c.events.Eventf(users[pv], v1.EventTypeWarning, "FailedAttachVolume",
			"Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", pv)
		c.Log.Info("a volume is held by another node", "volume", pv, "node", name, "holder", other)
	}
	return plan.Wake, c.perform(ctx, in, plan)
}

// have lists the node's attachments and since when each is unneeded.
func (c *reconciler) have(node string, want map[string]volume, now time.Time) (out []have) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range podcontrol.Indexed[*storagev1.VolumeAttachment](c.attachments, byNode, node) {
		if a.Spec.Source.PersistentVolumeName == nil || !ours.MatchString(a.Name) {
			continue // inline volumes, and what others made, are their creators' business
		}
		h := have{VolumeAttachment: a, Volume: volume{PV: *a.Spec.Source.PersistentVolumeName, Driver: a.Spec.Attacher}}
		if pv, err := c.Informers.Core().V1().PersistentVolumes().Lister().Get(h.Volume.PV); err == nil && pv.Spec.CSI != nil {
			h.Volume.Handle = pv.Spec.CSI.VolumeHandle
		}
		if _, wanted := want[h.Volume.PV]; wanted {
			delete(c.idle, a.UID)
		} else {
			if c.idle[a.UID].IsZero() {
				c.idle[a.UID] = now
			}
			h.IdleSince = c.idle[a.UID]
		}
		out = append(out, h)
	}
	return out
}

func (c *reconciler) perform(ctx context.Context, in input, plan plan) error {
	if plan.Write {
		attached := plan.Attached
		if attached == nil {
			attached = []v1.AttachedVolume{}
		}
		_, err := kube.Patch(ctx, c.Client.CoreV1().Nodes(), in.Node, kube.SameObject,
			kube.Change{Status: map[string]any{"volumesAttached": attached}, Subresource: "status"})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("writing the attached volumes of node %s: %w", in.Name, err)
		}
	}
	api := c.Client.StorageV1().VolumeAttachments()
	var errs []error
	for _, a := range plan.Detach {
		c.Note("VolumeAttachment", a, "detached", journal.Fact{Name: "node", Value: in.Name},
			journal.Fact{Name: "forced", Value: plan.Forced})
		if err := api.Delete(ctx, a.Name, kube.SameUID(a)); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("detaching %s from node %s: %w", *a.Spec.Source.PersistentVolumeName, in.Name, err))
			continue
		}
		c.mu.Lock()
		delete(c.idle, a.UID)
		c.mu.Unlock()
	}
	for _, v := range plan.Attach {
		_, err := api.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name(v, in.Name)},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: v.Driver, NodeName: in.Name,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.PV}}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("attaching %s to node %s: %w", v.PV, in.Name, err))
		}
	}
	return errors.Join(errs...)
}
