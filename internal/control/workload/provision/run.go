package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	helper "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/localvolume"
)

// callTimeout bounds one call to a driver: a copy of a large volume takes
// minutes.
const callTimeout = 10 * time.Minute

// Post sends a request of the driver's to the agent of a node and returns the
// HTTP status and the body of the answer.
type Post func(ctx context.Context, node, path string, body []byte) (int, []byte, error)

type provisioner struct {
	controller.Env
	post    Post
	queue   *controller.Queue // keys: "c/" + claim, "v/" + volume, "n/" + node, "setup"
	events  record.EventRecorder
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister
	csi     storagelisters.CSINodeLister
	drivers storagelisters.CSIDriverLister
	rooms   storagelisters.CSIStorageCapacityLister
	// told is the last event of a claim or volume by its UID: a refusal that
	// stands is told once.
	told sync.Map
}

// Run makes volumes until the context ends. post may be nil: then nodes are
// asked through the API server.
func Run(ctx context.Context, e controller.Env, post Post) error {
	core, storage := e.Informers.Core().V1(), e.Informers.Storage().V1()
	p := &provisioner{Env: e, post: post, queue: controller.NewQueue(), events: e.Recorder(localvolume.Name),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), nodes: core.Nodes().Lister(),
		classes: storage.StorageClasses().Lister(), csi: storage.CSINodes().Lister(), drivers: storage.CSIDrivers().Lister(),
		rooms: storage.CSIStorageCapacities().Lister()}
	if p.post == nil {
		p.post = p.throughServer
	}
	synced, err := p.watch(ctx)
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, synced...); err != nil {
		return nil
	}
	p.queue.Add("setup")
	return e.Run(ctx, p.queue, 8, p.sync)
}

func (p *provisioner) sync(ctx context.Context, key string) (time.Duration, error) {
	what, name, _ := strings.Cut(key, "/")
	switch what {
	case "c":
		ns, name := controller.Split(name)
		return 0, p.claim(ctx, ns, name)
	case "v":
		return 0, p.volume(ctx, name)
	case "n":
		return p.room(ctx, name)
	}
	return 0, p.setUp(ctx)
}

// throughServer asks an agent through the API server, which knows how to reach
// it and which agents to trust.
func (p *provisioner) throughServer(ctx context.Context, node, path string, body []byte) (code int, answer []byte, err error) {
	r := p.Client.CoreV1().RESTClient().Post().Resource("nodes").Name(node).SubResource("proxy").Suffix(path).
		SetHeader("Content-Type", "application/json").Body(bytes.NewReader(body)).Do(ctx).StatusCode(&code)
	answer, err = r.Raw()
	return code, answer, err
}

func (p *provisioner) call(ctx context.Context, node, name string, in, out proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return localvolume.Call(ctx, func(ctx context.Context, path string, body []byte) (int, []byte, error) {
		return p.post(ctx, node, path, body)
	}, name, in, out)
}

// serves says whether the driver is registered on a node.
func (p *provisioner) serves(node string) bool {
	n, err := p.csi.Get(node)
	return err == nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == localvolume.Name })
}

// warnOnce records a warning event about a claim or volume, unless the last one was
// the same.
func (p *provisioner) warnOnce(o interface {
	metav1.Object
	runtimeObject
}, reason, message string) {
	if last, ok := p.told.Swap(o.GetUID(), reason+message); ok && last == reason+message {
		return
	}
	p.events.Event(o, v1.EventTypeWarning, reason, message)
}

func (p *provisioner) claim(ctx context.Context, ns, name string) error {
	claim, err := p.claims.PersistentVolumeClaims(ns).Get(name)
	if err != nil {
		return ignoreGone(err)
	}
	c, err := p.gatherClaim(claim)
	if err != nil {
		return err
	}
	plan := forClaim(c)
	if plan.Reason != "" {
		p.warnOnce(claim, plan.Reason, plan.Message)
	}
	switch plan.Do {
	case Create:
		return p.create(ctx, c, plan)
	case Expand:
		return p.expand(ctx, c, plan)
	case Report:
		return p.report(ctx, claim, plan.Bytes)
	case Reschedule:
		return p.reschedule(ctx, claim)
	}
	return nil
}

// gatherClaim reads what the decision about a claim depends on.
func (p *provisioner) gatherClaim(claim *v1.PersistentVolumeClaim) (claimInput, error) {
	c := claimInput{PersistentVolumeClaim: claim}
	var err error
	if n := helper.GetPersistentVolumeClaimClass(claim); n != "" {
		if c.Class, err = p.classes.Get(n); apierrors.IsNotFound(err) {
			c.Class, err = nil, nil
		}
	}
	name := claim.Spec.VolumeName
	if name == "" {
		name = volumeName(claim)
	}
	var err2 error
	if c.Volume, err2 = p.volumes.Get(name); apierrors.IsNotFound(err2) {
		c.Volume, err2 = nil, nil
	}
	if from := claim.Spec.DataSourceRef; from != nil && from.Kind == "PersistentVolumeClaim" &&
		(from.Namespace == nil || *from.Namespace == claim.Namespace) {
		if s, err := p.claims.PersistentVolumeClaims(claim.Namespace).Get(from.Name); err == nil && s.Spec.VolumeName != "" {
			if pv, err := p.volumes.Get(s.Spec.VolumeName); err == nil && ours(pv) {
				c.Source = pv
			}
		}
	}
	if at := claim.Annotations[helper.AnnSelectedNode]; at != "" {
		_, err := p.nodes.Get(at)
		c.NodeGone = apierrors.IsNotFound(err)
	} else if c.Class != nil && !delayed(c.Class) {
		c.Roomiest = p.roomiest(c.Class.Name)
	}
	return c, errors.Join(err, err2)
}

// create has the volume made and makes its object. Each step finds what a crash
// left of it: the driver knows the name, and so does the API server.
func (p *provisioner) create(ctx context.Context, c claimInput, plan plan) error {
	claim := c.PersistentVolumeClaim
	answer := &spec.CreateVolumeResponse{}
	err := p.call(ctx, plan.Node, "CreateVolume", request(c, plan), answer)
	switch status.Code(err) {
	case codes.OK:
	case codes.ResourceExhausted:
		p.warnOnce(claim, "ProvisioningFailed", fmt.Sprintf("%s; the scheduler chooses again", status.Convert(err).Message()))
		p.queue.Add("n/" + plan.Node)
		if claim.Annotations[helper.AnnSelectedNode] != "" {
			return p.reschedule(ctx, claim)
		}
		return err
	case codes.Unavailable:
		return fmt.Errorf("making the volume of claim %s on node %s: %w", controller.Key(claim), plan.Node, err)
	default:
		p.warnOnce(claim, "ProvisioningFailed", status.Convert(err).Message())
		return fmt.Errorf("making the volume of claim %s on node %s: %w", controller.Key(claim), plan.Node, err)
	}
	pv := volume(c, plan, answer.Volume)
	if _, err := p.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making volume %s: %w", pv.Name, err)
	}
	p.told.Delete(claim.UID)
	p.Tell(controller.Note{Kind: "PersistentVolumeClaim", Object: claim, Decision: "volume " + pv.Name + " made", Because: []journal.Fact{
		{Name: "node", Value: plan.Node}, {Name: "class", Value: c.Class.Name},
		{Name: "bytes", Value: fmt.Sprint(answer.Volume.CapacityBytes)}},
		Event: controller.Event{To: p.events, Reason: "ProvisioningSucceeded", Message: "Successfully provisioned volume " + pv.Name}})
	if answer.Volume.VolumeContext[localvolume.EnforcedContext] == "false" {
		p.events.Event(claim, v1.EventTypeWarning, "CapacityNotEnforced",
			fmt.Sprintf("the filesystem of node %s has no project quotas: nothing stops the volume from "+
				"growing beyond %s. StorageClass %s holds volumes to their size everywhere", plan.Node,
				resource.NewQuantity(answer.Volume.CapacityBytes, resource.BinarySI), ImageClass))
	}
	p.queue.Add("n/" + plan.Node)
	return nil
}

// reschedule asks the scheduler for another node.
func (p *provisioner) reschedule(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	change := kube.Change{Annotations: map[string]*string{helper.AnnSelectedNode: nil}}
	_, err := kube.Patch(ctx, p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim, kube.Unchanged, change)
	if ignoreGone(err) != nil {
		return fmt.Errorf("taking claim %s off its node: %w", controller.Key(claim), err)
	}
	return nil
}

// expand lets a volume grow, and says so first in its object and then in the
// claim. The driver leaves nothing to do on the node.
func (p *provisioner) expand(ctx context.Context, c claimInput, plan plan) error {
	claim, answer := c.PersistentVolumeClaim, &spec.ControllerExpandVolumeResponse{}
	err := p.call(ctx, plan.Node, "ControllerExpandVolume", &spec.ControllerExpandVolumeRequest{
		VolumeId: c.Volume.Spec.CSI.VolumeHandle, CapacityRange: &spec.CapacityRange{RequiredBytes: plan.Bytes}}, answer)
	if err != nil {
		if status.Code(err) != codes.Unavailable {
			p.warnOnce(claim, "VolumeResizeFailed", status.Convert(err).Message())
		}
		return fmt.Errorf("growing volume %s of claim %s: %w", c.Volume.Name, controller.Key(claim), err)
	}
	size := resource.NewQuantity(answer.CapacityBytes, resource.BinarySI)
	change := kube.Change{Spec: map[string]any{"capacity": v1.ResourceList{v1.ResourceStorage: *size}}}
	if _, err := kube.Patch(ctx, p.Client.CoreV1().PersistentVolumes(), c.Volume, kube.SameObject, change); err != nil {
		return fmt.Errorf("writing the new size of volume %s: %w", c.Volume.Name, err)
	}
	p.queue.Add("n/" + plan.Node)
	p.told.Delete(claim.UID)
	p.Tell(controller.Note{Kind: "PersistentVolumeClaim", Object: claim, Decision: "volume " + c.Volume.Name + " grown",
		Because: []journal.Fact{{Name: "size", Value: size.String()}},
		Event: controller.Event{To: p.events, Reason: "VolumeResizeSuccessful", Message: "volume " + c.Volume.Name + " has " +
			size.String()}})
	return p.report(ctx, claim, answer.CapacityBytes)
}

// report writes the size of its volume into a claim, and that nothing is being
// resized any more.
func (p *provisioner) report(ctx context.Context, claim *v1.PersistentVolumeClaim, bytes int64) error {
	size := resource.NewQuantity(bytes, resource.BinarySI)
	kept := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimResizing || c.Type == v1.PersistentVolumeClaimFileSystemResizePending
	})
	change := kube.Change{Subresource: "status", Status: map[string]any{"capacity": v1.ResourceList{v1.ResourceStorage: *size},
		"conditions": kept}}
	_, err := kube.Patch(ctx, p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim, kube.Unchanged, change)
	if ignoreGone(err) != nil {
		return fmt.Errorf("writing the size of claim %s: %w", controller.Key(claim), err)
	}
	return nil
}

func (p *provisioner) volume(ctx context.Context, name string) error {
	pv, err := p.volumes.Get(name)
	if err != nil {
		return ignoreGone(err)
	}
	node := nodeOf(pv)
	_, err = p.nodes.Get(node)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	plan := forVolume(pv, err != nil)
	if plan.Reason != "" {
		p.warnOnce(pv, plan.Reason, plan.Message)
	}
	switch plan.Do {
	case Delete:
		return p.remove(ctx, pv, node)
	case Hold:
		return p.finalizers(ctx, pv, append(slices.Clone(pv.Finalizers), finalizer))
	case LetGo:
		return p.finalizers(ctx, pv, slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == finalizer }))
	}
	return nil
}

// remove deletes the data of a released volume and then its object.
func (p *provisioner) remove(ctx context.Context, pv *v1.PersistentVolume, node string) error {
	// The cache may be behind: data is not deleted on its word alone.
	live, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return ignoreGone(err)
	}
	if live.UID != pv.UID || forVolume(live, false).Do != Delete {
		return nil
	}
	if err := p.call(ctx, node, "DeleteVolume", &spec.DeleteVolumeRequest{VolumeId: live.Spec.CSI.VolumeHandle},
		&spec.DeleteVolumeResponse{}); err != nil {
		if status.Code(err) != codes.Unavailable {
			p.warnOnce(live, "VolumeFailedDelete", status.Convert(err).Message())
		}
		return fmt.Errorf("deleting the data of volume %s: %w", pv.Name, err)
	}
	p.Note("PersistentVolume", live, "its data deleted", journal.Fact{Name: "node", Value: node})
	p.queue.Add("n/" + node)
	if live.DeletionTimestamp == nil {
		err := p.Client.CoreV1().PersistentVolumes().Delete(ctx, live.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
		if ignoreGone(err) != nil {
			return fmt.Errorf("deleting volume %s: %w", pv.Name, err)
		}
	}
	if live, err = p.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{}); err != nil || live.UID != pv.UID {
		return ignoreGone(err)
	}
	p.told.Delete(pv.UID)
	return p.finalizers(ctx, live, slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer }))
}

func (p *provisioner) finalizers(ctx context.Context, pv *v1.PersistentVolume, want []string) error {
	_, err := kube.Patch(ctx, p.Client.CoreV1().PersistentVolumes(), pv, kube.Unchanged, kube.Change{Finalizers: &want})
	if ignoreGone(err) != nil {
		return fmt.Errorf("writing the finalizers of volume %s: %w", pv.Name, err)
	}
	return nil
}

// all queues what a change of a class or node may help.
func (p *provisioner) all() {
	claims, _ := p.claims.List(labels.Everything()) //nolint:errcheck // a cache with a selector that fits all
	for _, c := range claims {
		if c.Spec.VolumeName == "" {
			p.queue.Add("c/" + controller.Key(c))
		}
	}
}
