package place

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// room is how large a volume of a class may be where nodes match (KEP-1472).
type room struct {
	nodes labels.Selector
	bytes int64
}

// SetCSIDriver records whether a driver's room is to be looked at.
func (s *Snapshot) SetCSIDriver(d *storagev1.CSIDriver) {
	if d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity {
		s.roomy[d.Name] = true
		return
	}
	delete(s.roomy, d.Name)
}

// RemoveCSIDriver forgets a driver.
func (s *Snapshot) RemoveCSIDriver(name string) { delete(s.roomy, name) }

// SetCapacity adds or replaces what a driver tells of its room.
func (s *Snapshot) SetCapacity(c *storagev1.CSIStorageCapacity) {
	s.RemoveCapacity(c)
	limit := c.Capacity
	if c.MaximumVolumeSize != nil {
		limit = c.MaximumVolumeSize
	}
	// Without a topology the storage can be reached from nowhere.
	nodes, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	if limit == nil || c.NodeTopology == nil || err != nil {
		return
	}
	if s.rooms[c.StorageClassName] == nil {
		s.rooms[c.StorageClassName] = map[types.NamespacedName]room{}
	}
	s.rooms[c.StorageClassName][types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = room{nodes, limit.Value()}
}

// RemoveCapacity forgets what a driver told; the class of such an object never
// changes.
func (s *Snapshot) RemoveCapacity(c *storagev1.CSIStorageCapacity) {
	delete(s.rooms[c.StorageClassName], types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
}

// hasRoom says whether a volume for a claim can be made for a node, as far as
// its driver tells.
func (s *Snapshot) hasRoom(need *claimNeed, n *v1.Node) bool {
	if !s.roomy[need.class.Provisioner] {
		return true
	}
	want := need.claim.Spec.Resources.Requests[v1.ResourceStorage]
	for _, r := range s.rooms[need.class.Name] {
		if r.bytes >= want.Value() && r.nodes.Matches(labels.Set(n.Labels)) {
			return true
		}
	}
	return false
}
