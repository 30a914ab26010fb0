package place

import (
	"sort"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// Snapshot is the scheduler's view of the cluster. It is kept up to date one
// event at a time, each in time proportional to the event, and is not safe for
// concurrent use: its owner is the loop that calls Place.
//
// Objects handed in are kept by reference and must not be changed afterwards.
type Snapshot struct {
	nodes map[string]*node
	// order lists the nodes that exist. next rotates through it, so that equal
	// nodes are taken in turn.
	order []*node
	next  int

	pods map[types.UID]*placed
	// choosy are the placed pods with required anti-affinity, opinionated the
	// ones with any preferred or required affinity: usually few.
	choosy, opinionated map[types.UID]*placed
	nominated           map[string]map[types.UID]*Pod
	nominations         map[types.UID]string

	namespaces map[string]labels.Set
	claims     map[types.NamespacedName]*v1.PersistentVolumeClaim
	volumes    map[string]*v1.PersistentVolume
	classes    map[string]*storagev1.StorageClass
	limits     map[string]map[string]int64 // node -> CSI driver -> volumes
	// roomy are the CSI drivers that tell their room, rooms what they tell, by
	// StorageClass.
	roomy   map[string]bool
	rooms   map[string]map[types.NamespacedName]room
	budgets map[types.NamespacedName]*policyv1.PodDisruptionBudget
	// assumedClaims maps a volume to the claim a placement in flight will bind
	// it to, so that two pods are not promised one volume.
	assumedClaims map[string]types.NamespacedName
	// exclusive counts the placed pods per claim.
	claimUsers map[types.NamespacedName]int
	images     map[string]*image
	devices    devices
}

type image struct {
	size  int64
	nodes int
}

// node is one node and the sums over the pods placed on it. obj is nil while
// pods name a node that does not exist (yet, or any more).
type node struct {
	name  string
	obj   *v1.Node
	index int // in Snapshot.order

	allocatable        Resources
	requested          Resources
	scoreCPU, scoreMem int64
	pods               map[types.UID]*placed
	owners             map[types.UID]int
	ports              int // how many host ports are taken on it
	images             map[string]int64
}

type placed struct {
	*Pod
	node *node
}

// NewSnapshot returns an empty view.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		nodes: map[string]*node{}, pods: map[types.UID]*placed{},
		choosy: map[types.UID]*placed{}, opinionated: map[types.UID]*placed{},
		nominated: map[string]map[types.UID]*Pod{}, nominations: map[types.UID]string{},
		namespaces: map[string]labels.Set{},
		claims:     map[types.NamespacedName]*v1.PersistentVolumeClaim{},
		volumes:    map[string]*v1.PersistentVolume{}, classes: map[string]*storagev1.StorageClass{}, roomy: map[string]bool{},
		rooms:         map[string]map[types.NamespacedName]room{},
		limits:        map[string]map[string]int64{},
		budgets:       map[types.NamespacedName]*policyv1.PodDisruptionBudget{},
		assumedClaims: map[string]types.NamespacedName{},
		claimUsers:    map[types.NamespacedName]int{},
		images:        map[string]*image{},
		devices:       newDevices(),
	}
}

// Nodes returns how many nodes exist.
func (s *Snapshot) Nodes() int { return len(s.order) }

// Pods returns how many pods are placed.
func (s *Snapshot) Pods() int { return len(s.pods) }

func (s *Snapshot) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, pods: map[types.UID]*placed{}, index: -1}
		s.nodes[name] = n
	}
	return n
}

// SetNode adds or replaces a node.
func (s *Snapshot) SetNode(obj *v1.Node) {
	n := s.node(obj.Name)
	if n.index < 0 {
		n.index = len(s.order)
		s.order = append(s.order, n)
	}
	s.forgetImages(n)
	n.obj = obj
	n.allocatable = resourcesOf(obj.Status.Allocatable)
	n.images = make(map[string]int64, len(obj.Status.Images))
	for _, im := range obj.Status.Images {
		for _, name := range im.Names {
			if _, dup := n.images[name]; dup {
				continue
			}
			n.images[name] = im.SizeBytes
			g := s.images[name]
			if g == nil {
				g = &image{}
				s.images[name] = g
			}
			g.size = im.SizeBytes
			g.nodes++
		}
	}
}

func (s *Snapshot) forgetImages(n *node) {
	for name := range n.images {
		if g := s.images[name]; g != nil {
			if g.nodes--; g.nodes == 0 {
				delete(s.images, name)
			}
		}
	}
	n.images = nil
}

// RemoveNode forgets a node. Pods still placed on it are kept apart, so that
// they count again should the node come back.
func (s *Snapshot) RemoveNode(name string) {
	n := s.nodes[name]
	if n == nil || n.index < 0 {
		return
	}
	s.forgetImages(n)
	last := s.order[len(s.order)-1]
	s.order[n.index] = last
	last.index = n.index
	s.order = s.order[:len(s.order)-1]
	n.obj, n.index = nil, -1
	s.drop(n)
}

func (s *Snapshot) drop(n *node) {
	if n.obj == nil && len(n.pods) == 0 {
		delete(s.nodes, n.name)
	}
}

// SetPod places a pod on the node its spec names, replacing an earlier version
// of it. A pod without a node, or whose containers have all ended, holds
// nothing and is removed.
func (s *Snapshot) SetPod(pod *v1.Pod) error {
	if pod.Spec.NodeName == "" || podutil.Terminal(pod) {
		s.RemovePod(pod.UID)
		return nil
	}
	p, err := Parse(pod)
	if err != nil {
		// It runs, whatever its selectors say: what it reserves still counts.
		p = &Pod{Obj: pod, constraints: noConstraints}
		p.Request, p.scoreCPU, p.scoreMem = requestOf(pod)
		p.ports = hostPorts(pod)
	}
	s.Assume(p, pod.Spec.NodeName)
	return err
}

// Assume places a pod on a node ahead of the API server's confirmation.
// SetPod replaces it; RemovePod takes it back.
func (s *Snapshot) Assume(p *Pod, nodeName string) {
	uid := p.Obj.UID
	s.RemovePod(uid)
	s.Nominate(p, "")
	n := s.node(nodeName)
	pl := &placed{p, n}
	s.pods[uid] = pl
	n.pods[uid] = pl
	n.requested = n.requested.add(p.Request, 1)
	n.scoreCPU += p.scoreCPU
	n.scoreMem += p.scoreMem
	n.ports += len(p.ports)
	if p.owner != "" {
		if n.owners == nil {
			n.owners = map[types.UID]int{}
		}
		n.owners[p.owner]++
	}
	if len(p.anti) > 0 {
		s.choosy[uid] = pl
	}
	if len(p.likes)+len(p.dislikes)+len(p.affinity) > 0 {
		s.opinionated[uid] = pl
	}
	for _, c := range p.claims {
		s.claimUsers[types.NamespacedName{Namespace: p.Obj.Namespace, Name: c}]++
	}
}

// RemovePod forgets a placed or nominated pod; an unknown one is fine.
func (s *Snapshot) RemovePod(uid types.UID) {
	if name, ok := s.nominations[uid]; ok {
		delete(s.nominated[name], uid)
		delete(s.nominations, uid)
	}
	pl := s.pods[uid]
	if pl == nil {
		return
	}
	n := pl.node
	delete(s.pods, uid)
	delete(s.choosy, uid)
	delete(s.opinionated, uid)
	delete(n.pods, uid)
	n.requested = n.requested.add(pl.Request, -1)
	n.scoreCPU -= pl.scoreCPU
	n.scoreMem -= pl.scoreMem
	n.ports -= len(pl.ports)
	if pl.owner != "" {
		if n.owners[pl.owner]--; n.owners[pl.owner] == 0 {
			delete(n.owners, pl.owner)
		}
	}
	for _, c := range pl.claims {
		key := types.NamespacedName{Namespace: pl.Obj.Namespace, Name: c}
		if s.claimUsers[key]--; s.claimUsers[key] == 0 {
			delete(s.claimUsers, key)
		}
	}
	s.drop(n)
}

// Nominate reserves room on a node for a pod that waits for its victims to
// leave; an empty node name takes the nomination back.
func (s *Snapshot) Nominate(p *Pod, nodeName string) {
	uid := p.Obj.UID
	if old, ok := s.nominations[uid]; ok {
		delete(s.nominated[old], uid)
		delete(s.nominations, uid)
	}
	if nodeName == "" {
		return
	}
	if s.nominated[nodeName] == nil {
		s.nominated[nodeName] = map[types.UID]*Pod{}
	}
	s.nominated[nodeName][uid] = p
	s.nominations[uid] = nodeName
}

// SetNamespace records a namespace's labels, for namespace selectors.
func (s *Snapshot) SetNamespace(name string, l map[string]string) { s.namespaces[name] = l }

// RemoveNamespace forgets a namespace.
func (s *Snapshot) RemoveNamespace(name string) { delete(s.namespaces, name) }

// SetClaim adds or replaces a claim.
func (s *Snapshot) SetClaim(c *v1.PersistentVolumeClaim) {
	s.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
}

// RemoveClaim forgets a claim.
func (s *Snapshot) RemoveClaim(namespace, name string) {
	delete(s.claims, types.NamespacedName{Namespace: namespace, Name: name})
}

// SetVolume adds or replaces a persistent volume.
func (s *Snapshot) SetVolume(v *v1.PersistentVolume) { s.volumes[v.Name] = v }

// RemoveVolume forgets a persistent volume.
func (s *Snapshot) RemoveVolume(name string) { delete(s.volumes, name) }

// SetClass adds or replaces a storage class.
func (s *Snapshot) SetClass(c *storagev1.StorageClass) { s.classes[c.Name] = c }

// RemoveClass forgets a storage class.
func (s *Snapshot) RemoveClass(name string) { delete(s.classes, name) }

// SetCSINode records how many volumes each CSI driver can attach to a node.
func (s *Snapshot) SetCSINode(c *storagev1.CSINode) {
	limits := map[string]int64{}
	for _, d := range c.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	if len(limits) == 0 {
		delete(s.limits, c.Name)
		return
	}
	s.limits[c.Name] = limits
}

// RemoveCSINode forgets a node's volume limits.
func (s *Snapshot) RemoveCSINode(name string) { delete(s.limits, name) }

// SetBudget adds or replaces a disruption budget, which preemption respects
// where it can.
func (s *Snapshot) SetBudget(b *policyv1.PodDisruptionBudget) {
	s.budgets[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = b
}

// RemoveBudget forgets a disruption budget.
func (s *Snapshot) RemoveBudget(namespace, name string) {
	delete(s.budgets, types.NamespacedName{Namespace: namespace, Name: name})
}

// sortedVolumes lists volumes by name, so that matching is deterministic.
func (s *Snapshot) sortedVolumes() []*v1.PersistentVolume {
	out := make([]*v1.PersistentVolume, 0, len(s.volumes))
	for _, v := range s.volumes {
		out = append(out, v)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// Placed says whether the pod is counted on some node.
func (s *Snapshot) Placed(uid types.UID) bool { return s.pods[uid] != nil }

// NodeHelps says whether this version of a node might take a pod that the one
// in the snapshot would not: it is new, or its labels, taints, room or
// schedulability differ.
func (s *Snapshot) NodeHelps(n *v1.Node) bool {
	old := s.nodes[n.Name]
	return old == nil || old.obj == nil || old.obj.Spec.Unschedulable != n.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(old.obj.Spec.Taints, n.Spec.Taints) ||
		!equality.Semantic.DeepEqual(old.obj.Labels, n.Labels) ||
		!equality.Semantic.DeepEqual(old.obj.Status.Allocatable, n.Status.Allocatable)
}

// Claim returns a claim, or nil.
func (s *Snapshot) Claim(key types.NamespacedName) *v1.PersistentVolumeClaim { return s.claims[key] }

// Volume returns a persistent volume, or nil.
func (s *Snapshot) Volume(name string) *v1.PersistentVolume { return s.volumes[name] }
