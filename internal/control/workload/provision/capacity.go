package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/localvolume"
)

// capacityEvery is how often a node is asked for its room when nothing was
// made or removed there: other files take room as well.
const capacityEvery = time.Minute

// capacityName is the name of the object for a class on a node.
func capacityName(class, node string) string {
	sum := sha256.Sum256([]byte(class + "/" + node))
	return "local-" + hex.EncodeToString(sum[:8])
}

// differs says whether what is told of a node's room is worth telling again: a
// node that runs pods changes by some bytes all the time.
func differs(told, now int64) bool {
	const least = 64 << 20
	d := max(told-now, now-told)
	return d > 0 && (d >= least || d > told/64 || now == 0 || told == 0)
}

// room tells the scheduler what room a node has for volumes of each class.
func (p *provisioner) room(ctx context.Context, name string) (time.Duration, error) {
	node, err := p.nodes.Get(name)
	if err != nil {
		return 0, ignoreGone(err) // the objects are the node's, and go with it
	}
	if !p.serves(name) {
		return 0, nil
	}
	classes, err := p.classes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	wanted := map[string]bool{}
	for _, c := range classes {
		if c.Provisioner != localvolume.Name || c.DeletionTimestamp != nil {
			continue
		}
		wanted[capacityName(c.Name, name)] = true
		answer := &spec.GetCapacityResponse{}
		if err := p.call(ctx, name, "GetCapacity", &spec.GetCapacityRequest{Parameters: parameters(c)}, answer); err != nil {
			return 0, fmt.Errorf("asking node %s for its room: %w", name, err)
		}
		if err := p.publishCapacity(ctx, node, c.Name, answer.AvailableCapacity); err != nil {
			return 0, err
		}
	}
	return capacityEvery, p.deleteCapacities(ctx, name, wanted)
}

// publishCapacity writes the CSIStorageCapacity of a node and class.
func (p *provisioner) publishCapacity(ctx context.Context, node *v1.Node, class string, bytes int64) error {
	api, size := p.Client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem), resource.NewQuantity(bytes, resource.BinarySI)
	have, err := p.rooms.CSIStorageCapacities(metav1.NamespaceSystem).Get(capacityName(class, node.Name))
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: capacityName(class, node.Name),
				Labels:          map[string]string{localvolume.TopologyKey: node.Name},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
			StorageClassName: class, Capacity: size, MaximumVolumeSize: size,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{localvolume.TopologyKey: node.Name}},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the cache is behind; the next round compares
		}
	case err == nil && (have.Capacity == nil || differs(have.Capacity.Value(), bytes)):
		_, err = kube.Patch(ctx, api, have, kube.SameObject,
			kube.Change{Fields: map[string]any{"capacity": size, "maximumVolumeSize": size}})
		err = ignoreGone(err)
	}
	if err != nil {
		return fmt.Errorf("telling the room of node %s for class %s: %w", node.Name, class, err)
	}
	return nil
}

// deleteCapacities deletes the CSIStorageCapacity objects of classes that were deleted.
func (p *provisioner) deleteCapacities(ctx context.Context, node string, wanted map[string]bool) error {
	all, err := p.rooms.CSIStorageCapacities(metav1.NamespaceSystem).List(labels.SelectorFromSet(labels.Set{localvolume.TopologyKey: node}))
	if err != nil {
		return err
	}
	for _, c := range all {
		if wanted[c.Name] {
			continue
		}
		uid := types.UID(c.UID)
		err := p.Client.StorageV1().CSIStorageCapacities(c.Namespace).Delete(ctx, c.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if ignoreGone(err) != nil {
			return fmt.Errorf("removing CSIStorageCapacity %s: %w", c.Name, err)
		}
	}
	return nil
}

// roomiest is the node with the most room for a class, "" for none.
func (p *provisioner) roomiest(class string) string {
	all, _ := p.rooms.CSIStorageCapacities(metav1.NamespaceSystem).List(
		labels.Everything()) //nolint:errcheck // a cache with a selector that fits all
	best, most := "", int64(-1)
	for _, c := range all {
		node := c.Labels[localvolume.TopologyKey]
		if c.StorageClassName == class && node != "" && c.Capacity != nil && (c.Capacity.Value() > most || c.Capacity.Value() == most &&
			node < best) {
			best, most = node, c.Capacity.Value()
		}
	}
	return best
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || kube.Gone(err) {
		return nil
	}
	return err
}
