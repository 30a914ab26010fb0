// Package provision makes volumes of the driver local.berth.dev for claims,
// lets them grow, removes them, and tells the scheduler what room nodes have.
// It decides; the driver on the node (internal/localvolume) does.
package provision

import (
	"fmt"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/internal/localvolume"
)

// Annotations and the finalizer of external provisioners. Both spellings of the
// first are in use; the finalizer keeps a volume's object until its data is
// gone (KEP-2644).
const (
	provisionerAnnotation     = "volume.kubernetes.io/storage-provisioner"
	betaProvisionerAnnotation = "volume.beta.kubernetes.io/storage-provisioner"
	provisionedByAnnotation   = "pv.kubernetes.io/provisioned-by"
	finalizer                 = "external-provisioner.volume.kubernetes.io/finalizer"
)

// Parameters of a StorageClass below this prefix are the provisioner's, not
// the driver's.
const (
	ownPrefix       = "csi.storage.k8s.io/"
	fsTypeParameter = ownPrefix + "fstype"
)

// action is what is to be done about a claim or a volume.
type action string

// The actions.
const (
	Nothing    action = ""
	Create     action = "create"     // make a volume for a claim
	Expand     action = "expand"     // let a claim's volume grow
	Report     action = "report"     // tell the claim how large its volume is
	Reschedule action = "reschedule" // take the claim off a node that cannot have it
	Delete     action = "delete"     // remove a volume's data and its object
	Hold       action = "hold"       // put the finalizer on
	LetGo      action = "let go"     // take the finalizer off
)

// plan is an action, or the event that tells why there is none.
type plan struct {
	Do action
	// Node is where it is to be done.
	Node string
	// Bytes is the size asked for.
	Bytes int64
	// Reason and Message are a Warning for the claim or volume.
	Reason, Message string
}

// claimInput is all that decides over a claim.
type claimInput struct {
	*v1.PersistentVolumeClaim
	// Class is its StorageClass; nil if that does not exist.
	Class *storagev1.StorageClass
	// Volume is the volume it is bound to, or else the one made for it; nil for
	// none.
	Volume *v1.PersistentVolume
	// Source is the volume of the claim it is to be a copy of; nil for none.
	Source *v1.PersistentVolume
	// NodeGone is true when the node that was chosen does not exist.
	NodeGone bool
	// Roomiest is the node with the most room, for a class that binds at once.
	Roomiest string
}

// forClaim plans for one claim.
func forClaim(c claimInput) plan {
	if c.DeletionTimestamp != nil {
		return plan{}
	}
	if c.Spec.VolumeName != "" {
		return bound(c)
	}
	owner := c.Annotations[provisionerAnnotation]
	if owner == "" {
		owner = c.Annotations[betaProvisionerAnnotation]
	}
	if owner != localvolume.Name || c.Class == nil || c.Class.Provisioner != localvolume.Name || c.Volume != nil {
		return plan{}
	}
	if why := unfit(c); why != "" {
		return plan{Reason: "ProvisioningFailed", Message: why}
	}
	want := c.Spec.Resources.Requests[v1.ResourceStorage]
	p := plan{Do: Create, Node: c.Annotations[helper.AnnSelectedNode], Bytes: want.Value()}
	if c.Source != nil {
		at := nodeOf(c.Source)
		if p.Node != "" && p.Node != at {
			return plan{Do: Reschedule, Node: p.Node, Reason: "ProvisioningFailed",
				Message: fmt.Sprintf("claim %s is on node %s: a copy of it cannot be on node %s; the scheduler chooses again",
					c.Spec.DataSource.Name, at, p.Node)}
		}
		p.Node = at
	}
	switch {
	case p.Node != "" && c.NodeGone:
		return plan{Do: Reschedule, Node: p.Node, Reason: "ProvisioningFailed",
			Message: fmt.Sprintf("node %s does not exist any more; the scheduler chooses again", p.Node)}
	case p.Node != "":
		return p
	case delayed(c.Class):
		return plan{} // the scheduler has not chosen yet
	case c.Roomiest == "":
		return plan{Reason: "ProvisioningFailed", Message: "no node has local volumes"}
	}
	p.Node = c.Roomiest
	return p
}

func delayed(c *storagev1.StorageClass) bool {
	return c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// unfit tells why no volume can be made for a claim.
func unfit(c claimInput) string {
	for _, m := range c.Spec.AccessModes {
		if m != v1.ReadWriteOnce && m != v1.ReadWriteOncePod {
			return fmt.Sprintf("spec.accessModes: %s needs a volume that several nodes see, and a local volume is on one node: allowed "+
				"are ReadWriteOnce and ReadWriteOncePod", m)
		}
	}
	if c.Spec.Selector != nil {
		return "spec.selector: a volume that is made on demand cannot be selected: remove the selector, or make the volume first"
	}
	if t := c.Class.Parameters[fsTypeParameter]; t != "" && t != "ext4" {
		return fmt.Sprintf("StorageClass %s: parameter %s is %q: allowed is \"ext4\"", c.Class.Name, fsTypeParameter, t)
	}
	switch from := c.Spec.DataSourceRef; {
	case from == nil:
		return ""
	case from.Kind != "PersistentVolumeClaim" || from.APIGroup != nil && *from.APIGroup != "":
		return fmt.Sprintf("spec.dataSource: a local volume can be a copy of a PersistentVolumeClaim, not of a %s", from.Kind)
	case c.Source == nil:
		return fmt.Sprintf("spec.dataSource: claim %s is not bound to a local volume", from.Name)
	}
	return ""
}

// bound plans for a claim that has its volume.
func bound(c claimInput) plan {
	if c.Volume == nil || !ours(c.Volume) || c.Status.Phase != v1.ClaimBound {
		return plan{}
	}
	want, has := c.Spec.Resources.Requests[v1.ResourceStorage], c.Volume.Spec.Capacity[v1.ResourceStorage]
	told := c.Status.Capacity[v1.ResourceStorage]
	switch {
	case want.Cmp(has) > 0:
		return plan{Do: Expand, Node: nodeOf(c.Volume), Bytes: want.Value()}
	case told.Cmp(has) < 0:
		return plan{Do: Report, Bytes: has.Value()}
	}
	return plan{}
}

// ours says whether a volume is one of the driver's that was made on demand.
func ours(pv *v1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == localvolume.Name && pv.Annotations[provisionedByAnnotation] == localvolume.Name
}

// nodeOf is the node that a volume is on, "" for none.
func nodeOf(pv *v1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == localvolume.TopologyKey && e.Operator == v1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// forVolume plans for one volume. gone is true when its node does not exist.
func forVolume(pv *v1.PersistentVolume, gone bool) plan {
	if !ours(pv) {
		return plan{}
	}
	held := slices.Contains(pv.Finalizers, finalizer)
	node := nodeOf(pv)
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		if held {
			return plan{Do: LetGo} // the data stays, whatever becomes of the object
		}
	case pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed:
		if gone {
			return plan{Reason: "VolumeNodeGone",
				Message: fmt.Sprintf("the data is on node %s, which does not exist: it is deleted when the node comes back; "+
					"to forget it, remove the finalizer %s and delete this volume", node, finalizer)}
		}
		return plan{Do: Delete, Node: node}
	case !held && pv.DeletionTimestamp == nil:
		return plan{Do: Hold}
	}
	return plan{}
}

// request asks the driver for the volume of a claim.
func request(c claimInput, p plan) *spec.CreateVolumeRequest {
	req := &spec.CreateVolumeRequest{
		Name: volumeName(c.PersistentVolumeClaim), CapacityRange: &spec.CapacityRange{RequiredBytes: p.Bytes},
		Parameters: parameters(c.Class),
		AccessibilityRequirements: &spec.TopologyRequirement{
			Requisite: []*spec.Topology{{Segments: map[string]string{localvolume.TopologyKey: p.Node}}}},
	}
	if c.Source != nil {
		req.VolumeContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
			Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: c.Source.Spec.CSI.VolumeHandle}}}
	}
	for _, m := range c.Spec.AccessModes {
		one := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{
			Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}}
		if m == v1.ReadWriteOncePod {
			one.AccessMode.Mode = spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		if block(c.PersistentVolumeClaim) {
			one.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		} else {
			one.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{
				FsType: c.Class.Parameters[fsTypeParameter], MountFlags: c.Class.MountOptions}}
		}
		req.VolumeCapabilities = append(req.VolumeCapabilities, one)
	}
	return req
}

func block(c *v1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == v1.PersistentVolumeBlock
}

func volumeName(c *v1.PersistentVolumeClaim) string { return "pvc-" + string(c.UID) }

// parameters are those of a class that the driver is told.
func parameters(class *storagev1.StorageClass) map[string]string {
	out := map[string]string{}
	for k, v := range class.Parameters {
		if !strings.HasPrefix(k, ownPrefix) {
			out[k] = v
		}
	}
	return out
}

// volume is the object for a volume that the driver made for a claim.
func volume(c claimInput, p plan, made *spec.Volume) *v1.PersistentVolume {
	policy := v1.PersistentVolumeReclaimDelete
	if c.Class.ReclaimPolicy != nil {
		policy = *c.Class.ReclaimPolicy
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName(c.PersistentVolumeClaim),
			Annotations: map[string]string{provisionedByAnnotation: localvolume.Name}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:    v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(made.CapacityBytes, resource.BinarySI)},
			AccessModes: c.Spec.AccessModes, PersistentVolumeReclaimPolicy: policy, StorageClassName: c.Class.Name,
			MountOptions: c.Class.MountOptions,
			VolumeMode:   c.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID,
				ResourceVersion: c.ResourceVersion},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: localvolume.Name, VolumeHandle: made.VolumeId, VolumeAttributes: made.VolumeContext,
				FSType: c.Class.Parameters[fsTypeParameter]}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: localvolume.TopologyKey, Operator: v1.NodeSelectorOpIn,
					Values: []string{p.Node}}}}}}},
		},
	}
	if policy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{finalizer}
	}
	return pv
}
