package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

const (
	// wanted names the driver that a claim waits for.
	wanted = "volume.kubernetes.io/storage-provisioner"
	// chosen is the node that a claim's first pod was put on.
	chosen = "volume.kubernetes.io/selected-node"
	madeBy = "pv.kubernetes.io/provisioned-by"
	// guard keeps a PersistentVolume until its data is deleted.
	guard = "external-provisioner.volume.kubernetes.io/finalizer"
)

// provisioner makes volumes for claims and deletes released ones.
type provisioner struct {
	driver *driver
	client kubernetes.Interface
	shared informers.SharedInformerFactory
}

func provision(ctx context.Context, d *driver) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	p := &provisioner{driver: d, client: client, shared: informers.NewSharedInformerFactory(client, 0)}
	wake := make(chan struct{}, 1)
	trigger := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { trigger() }, UpdateFunc: func(any, any) { trigger() },
		DeleteFunc: func(any) { trigger() }}
	core := p.shared.Core().V1()
	for _, i := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(),
		p.shared.Storage().V1().StorageClasses().Informer()} {
		if _, err := i.AddEventHandler(handler); err != nil {
			return err
		}
	}
	p.shared.Start(ctx.Done())
	defer p.shared.Shutdown()
	p.shared.WaitForCacheSync(ctx.Done())
	for {
		again := time.After(time.Minute)
		if err := p.pass(ctx); err != nil {
			log.Print(err)
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-again:
		}
	}
}

// pass looks at all claims and volumes once.
func (p *provisioner) pass(ctx context.Context) error {
	claims, err := p.shared.Core().V1().PersistentVolumeClaims().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	for _, c := range claims {
		if c.Annotations[wanted] != p.driver.name || c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
			continue
		}
		if err := p.make(ctx, c); err != nil {
			return fmt.Errorf("making a volume for %s/%s: %w", c.Namespace, c.Name, err)
		}
	}
	volumes, err := p.shared.Core().V1().PersistentVolumes().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if v.Annotations[madeBy] != p.driver.name || v.Status.Phase != v1.VolumeReleased ||
			v.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
			continue
		}
		if err := p.remove(ctx, v); err != nil {
			return fmt.Errorf("deleting volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (p *provisioner) make(ctx context.Context, c *v1.PersistentVolumeClaim) error {
	class, err := p.shared.Storage().V1().StorageClasses().Lister().Get(*c.Spec.StorageClassName)
	if err != nil {
		return err
	}
	if node := c.Annotations[chosen]; node != "" && node != p.driver.nodeID {
		return nil // that node's driver makes it
	}
	block := c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == v1.PersistentVolumeBlock
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{
		Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
	if block {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	want := c.Spec.Resources.Requests[v1.ResourceStorage]
	made, err := p.driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "pvc-" + string(c.UID), CapacityRange: &csi.CapacityRange{RequiredBytes: want.Value()},
		VolumeCapabilities: []*csi.VolumeCapability{capability}, Parameters: class.Parameters,
	})
	if err != nil {
		return err
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID), Annotations: map[string]string{madeBy: p.driver.name},
			Finalizers: []string{guard}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:    v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(made.Volume.CapacityBytes, resource.BinarySI)},
			AccessModes: c.Spec.AccessModes, StorageClassName: class.Name, MountOptions: class.MountOptions, VolumeMode: c.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace,
				Name: c.Name, UID: c.UID},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: p.driver.name, VolumeHandle: made.Volume.VolumeId, VolumeAttributes: made.Volume.VolumeContext,
				FSType: class.Parameters["csi.storage.k8s.io/fstype"],
			}},
			NodeAffinity: affinity(made.Volume.AccessibleTopology),
		},
	}
	if class.ReclaimPolicy != nil {
		pv.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	if _, err = p.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func affinity(where []*csi.Topology) *v1.VolumeNodeAffinity {
	var terms []v1.NodeSelectorTerm
	for _, t := range where {
		var term v1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(t.Segments)) {
			term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn,
				Values: []string{t.Segments[key]}})
		}
		terms = append(terms, term)
	}
	if terms == nil {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
}

func (p *provisioner) remove(ctx context.Context, v *v1.PersistentVolume) error {
	if _, err := p.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.Spec.CSI.VolumeHandle}); err != nil {
		return err
	}
	api := p.client.CoreV1().PersistentVolumes()
	if err := api.Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := api.Get(ctx, v.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == guard })
		_, err = api.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
}
