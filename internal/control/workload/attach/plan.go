// Package attach keeps CSI volumes attached to the nodes whose pods need them,
// and detaches the rest without tearing a volume out of a running pod.
package attach

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// ForceAfter is how long an unhealthy node may keep a volume that no one needs
// there any more.
const ForceAfter = 6 * time.Minute

// volume is one CSI volume a node should have.
type volume struct {
	PV, Driver, Handle string
	// Shared says that several nodes may have it at once.
	Shared bool
}

// Unique is the volume's name in Node status.
func (v volume) Unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + v.Driver + "^" + v.Handle)
}

// name is the name of the VolumeAttachment of a volume on a node; kubelets
// compute it the same way.
func name(v volume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.Handle+v.Driver+node)))
}

// ours tells names that Name made from those that people choose.
var ours = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// have is one VolumeAttachment of the node.
type have struct {
	*storagev1.VolumeAttachment
	Volume volume
	// IdleSince is when the volume was first seen unneeded; zero: needed.
	IdleSince time.Time
}

// input is everything one plan for one node looks at.
type input struct {
	Node *v1.Node // nil when it does not exist
	Name string
	// Want are the volumes of the node's pods, by PV name.
	Want map[string]volume
	Have []have
	// Elsewhere names, per PV, another node it is attached to.
	Elsewhere map[string]string
	Now       time.Time
}

// plan is what to do next about one node, in this order: write Attached, then
// delete Detach, create Attach.
type plan struct {
	Attach []volume
	Detach []*storagev1.VolumeAttachment
	// Forced says why volumes in Detach go without the node's consent.
	Forced string
	// Refused are volumes another node holds exclusively.
	Refused map[string]string
	// Attached is the value node.status.volumesAttached should have; Write
	// says that it differs.
	Attached []v1.AttachedVolume
	Write    bool
	Wake     time.Duration
}

// makePlan plans for one node.
func makePlan(in input) plan {
	p := plan{Refused: map[string]string{}}
	have := map[string]bool{}
	inUse := map[v1.UniqueVolumeName]bool{}
	healthy, outOfService := false, false
	if in.Node != nil {
		for _, v := range in.Node.Status.VolumesInUse {
			inUse[v] = true
		}
		for _, c := range in.Node.Status.Conditions {
			healthy = healthy || (c.Type == v1.NodeReady && c.Status == v1.ConditionTrue)
		}
		for _, t := range in.Node.Spec.Taints {
			outOfService = outOfService || t.Key == v1.TaintNodeOutOfService
		}
	}
	for _, h := range in.Have {
		have[h.Volume.PV] = true
		if _, wanted := in.Want[h.Volume.PV]; wanted && h.DeletionTimestamp == nil {
			if h.Status.Attached {
				p.Attached = append(p.Attached, v1.AttachedVolume{Name: h.Volume.Unique()})
			}
			continue
		}
		if h.DeletionTimestamp != nil {
			continue // the attacher is at it
		}
		switch idle := in.Now.Sub(h.IdleSince); {
		case in.Node == nil, !inUse[h.Volume.Unique()]:
			p.Detach = append(p.Detach, h.VolumeAttachment)
		case outOfService && !healthy:
			p.Detach, p.Forced = append(p.Detach, h.VolumeAttachment), "out-of-service"
		case !healthy && idle >= ForceAfter:
			p.Detach, p.Forced = append(p.Detach, h.VolumeAttachment), "timeout"
		default:
			// The node still has it mounted: it stays on record until the node
			// says otherwise.
			if h.Status.Attached {
				p.Attached = append(p.Attached, v1.AttachedVolume{Name: h.Volume.Unique()})
			}
			if left := ForceAfter - idle; !healthy && (p.Wake == 0 || left < p.Wake) {
				p.Wake = left
			}
		}
	}
	p.attach(in, have)
	sort.Slice(p.Attached, func(i, j int) bool { return p.Attached[i].Name < p.Attached[j].Name })
	p.Write = in.Node != nil && !sameAttached(p.Attached, in.Node.Status.VolumesAttached)
	return p
}

func (p *plan) attach(in input, have map[string]bool) {
	if in.Node == nil {
		return
	}
	for pv, v := range in.Want {
		if have[pv] {
			continue
		}
		if other := in.Elsewhere[pv]; other != "" && !v.Shared {
			p.Refused[pv] = other
			continue
		}
		p.Attach = append(p.Attach, v)
	}
	sort.Slice(p.Attach, func(i, j int) bool { return p.Attach[i].PV < p.Attach[j].PV })
}

func sameAttached(a, b []v1.AttachedVolume) bool {
	if len(a) != len(b) {
		return false
	}
	names := map[v1.UniqueVolumeName]bool{}
	for _, v := range b {
		names[v.Name] = true
	}
	for _, v := range a {
		if !names[v.Name] {
			return false
		}
	}
	return true
}
