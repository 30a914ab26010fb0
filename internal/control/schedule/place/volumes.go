package place

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	volumehelper "k8s.io/component-helpers/storage/volume"
)

// claimNeed is one claim of the pod and what placement has to do about it.
type claimNeed struct {
	claim     *v1.PersistentVolumeClaim
	volume    *v1.PersistentVolume // bound volume, if any
	missing   bool                 // bound to a volume that does not exist
	class     *storagev1.StorageClass
	exclusive bool
}

// VolumePlan is what must be written before a pod that waits for its volumes
// may be bound: static volumes to reserve, and claims to hand to a provisioner
// with the chosen node.
type VolumePlan struct {
	Bind      []VolumeBind
	Provision []types.NamespacedName
}

// VolumeBind reserves a volume for a claim.
type VolumeBind struct {
	Volume string
	Claim  types.NamespacedName
}

// Empty says that nothing has to be written.
func (v VolumePlan) Empty() bool { return len(v.Bind)+len(v.Provision) == 0 }

// Claims lists the claims that must be bound before the pod is.
func (v VolumePlan) Claims() []types.NamespacedName {
	out := append([]types.NamespacedName(nil), v.Provision...)
	for _, b := range v.Bind {
		out = append(out, b.Claim)
	}
	return out
}

// lookVolumes resolves the pod's claims; a non-empty reason means that no node
// can take the pod until the claims change.
func (c *cycle) lookVolumes() (reason string) {
	immediate := false
	for _, name := range c.pod.claims {
		key := types.NamespacedName{Namespace: c.pod.Obj.Namespace, Name: name}
		claim := c.s.claims[key]
		switch {
		case claim == nil:
			return fmt.Sprintf("persistentvolumeclaim %q not found", name)
		case claim.DeletionTimestamp != nil:
			return fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
		case claim.Status.Phase == v1.ClaimLost:
			return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
		case c.isEphemeral(name) && !metav1.IsControlledBy(claim, c.pod.Obj):
			return fmt.Sprintf("PVC %q was not created for pod %q (pod is not owner)", name, c.pod.Obj.Namespace+"/"+c.pod.Obj.Name)
		}
		n := claimNeed{claim: claim, class: c.s.classes[volumehelper.GetPersistentVolumeClaimClass(claim)]}
		for _, m := range claim.Spec.AccessModes {
			n.exclusive = n.exclusive || m == v1.ReadWriteOncePod
		}
		if claim.Spec.VolumeName != "" {
			if metav1.HasAnnotation(claim.ObjectMeta, volumehelper.AnnBindCompleted) {
				n.volume = c.s.volumes[claim.Spec.VolumeName]
				n.missing = n.volume == nil
			} else {
				immediate = true // the binder is on its way
			}
		} else if n.class == nil || n.class.VolumeBindingMode == nil ||
			*n.class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
			immediate = true
		}
		c.claims = append(c.claims, n)
	}
	if immediate {
		return "pod has unbound immediate PersistentVolumeClaims"
	}
	return ""
}

func (c *cycle) isEphemeral(claim string) bool {
	for i := range c.pod.Obj.Spec.Volumes {
		v := &c.pod.Obj.Spec.Volumes[i]
		if v.Ephemeral != nil && c.pod.Obj.Name+"-"+v.Name == claim {
			return true
		}
	}
	return false
}

func (c *cycle) volumesReach(w *view) verdict {
	if len(c.claims) == 0 {
		return verdict{}
	}
	_, v := c.planVolumes(w.obj)
	return v
}

// planVolumes finds, for one node, a volume or a provisioner for each claim.
func (c *cycle) planVolumes(n *v1.Node) (VolumePlan, verdict) {
	var plan VolumePlan
	taken := map[string]*v1.PersistentVolume{}
	for name, claim := range c.s.assumedClaims {
		if claim.Namespace != c.pod.Obj.Namespace || !c.uses(claim.Name) {
			taken[name] = c.s.volumes[name]
		}
	}
	for i := range c.claims {
		need := &c.claims[i]
		switch {
		case need.missing:
			return plan, never("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
		case need.volume != nil:
			if err := volumehelper.CheckNodeAffinity(need.volume, n.Labels); err != nil {
				return plan, never("node(s) didn't match PersistentVolume's node affinity")
			}
			continue
		}
		key := types.NamespacedName{Namespace: need.claim.Namespace, Name: need.claim.Name}
		if at := need.claim.Annotations[volumehelper.AnnSelectedNode]; at != "" {
			// Already handed to a provisioner for one node.
			if at != n.Name {
				return plan, never("node(s) didn't match PersistentVolume's node affinity")
			}
			plan.Provision = append(plan.Provision, key)
			continue
		}
		if pv, err := volumehelper.FindMatchingVolume(need.claim, c.freeVolumes(), n, taken, false, true); err == nil && pv != nil {
			taken[pv.Name] = pv
			plan.Bind = append(plan.Bind, VolumeBind{pv.Name, key})
			continue
		}
		if need.class == nil || need.class.Provisioner == volumehelper.NotSupportedProvisioner || !topologyAllows(need.class, n) {
			return plan, never("node(s) didn't find available persistent volumes to bind")
		}
		if !c.s.hasRoom(need, n) {
			return plan, never("node(s) did not have enough free storage")
		}
		plan.Provision = append(plan.Provision, key)
	}
	return plan, verdict{}
}

// freeVolumes lists all volumes once per placement.
func (c *cycle) freeVolumes() []*v1.PersistentVolume {
	if c.volumes == nil {
		c.volumes = c.s.sortedVolumes()
	}
	return c.volumes
}

func (c *cycle) uses(claim string) bool {
	for _, n := range c.pod.claims {
		if n == claim {
			return true
		}
	}
	return false
}

func topologyAllows(class *storagev1.StorageClass, n *v1.Node) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	for i := range class.AllowedTopologies {
		sel := v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{}}}
		for _, e := range class.AllowedTopologies[i].MatchLabelExpressions {
			sel.NodeSelectorTerms[0].MatchExpressions = append(sel.NodeSelectorTerms[0].MatchExpressions,
				v1.NodeSelectorRequirement{Key: e.Key, Operator: v1.NodeSelectorOpIn, Values: e.Values})
		}
		if ok, err := corev1helpers.MatchNodeSelectorTerms(n, &sel); ok && err == nil {
			return true
		}
	}
	return false
}

// volumeLimits refuses a node whose CSI driver has no room for the pod's
// volumes. Two pods of a node that share a volume use one attachment.
func (c *cycle) volumeLimits(w *view) verdict {
	limits := c.s.limits[w.name]
	if len(limits) == 0 || len(c.claims) == 0 {
		return verdict{}
	}
	handles := map[string]map[string]bool{}
	add := func(ns string, names []string) {
		for _, name := range names {
			if driver, handle := c.driverOf(types.NamespacedName{Namespace: ns, Name: name}); driver != "" {
				if handles[driver] == nil {
					handles[driver] = map[string]bool{}
				}
				handles[driver][handle] = true
			}
		}
	}
	add(c.pod.Obj.Namespace, c.pod.claims)
	if len(handles) == 0 {
		return verdict{}
	}
	mine := make([]string, 0, len(handles))
	for d := range handles {
		mine = append(mine, d)
	}
	w.eachPod(func(p *Pod) bool { add(p.Obj.Namespace, p.claims); return true })
	for _, d := range mine {
		if limit, ok := limits[d]; ok && int64(len(handles[d])) > limit {
			return notNow("node(s) exceed max volume count")
		}
	}
	return verdict{}
}

func (c *cycle) driverOf(key types.NamespacedName) (driver, handle string) {
	claim := c.s.claims[key]
	if claim == nil {
		return "", ""
	}
	if pv := c.s.volumes[claim.Spec.VolumeName]; pv != nil {
		if pv.Spec.CSI == nil {
			return "", ""
		}
		return pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	}
	if class := c.s.classes[volumehelper.GetPersistentVolumeClaimClass(claim)]; class != nil {
		return class.Provisioner, key.String()
	}
	return "", ""
}

// AssumeVolumes remembers the volumes a placement in flight will reserve;
// ForgetVolumes takes that back once the API shows them bound, or the
// placement failed.
func (s *Snapshot) AssumeVolumes(plan VolumePlan) {
	for _, b := range plan.Bind {
		s.assumedClaims[b.Volume] = b.Claim
	}
}

// ForgetVolumes undoes AssumeVolumes.
func (s *Snapshot) ForgetVolumes(plan VolumePlan) {
	for _, b := range plan.Bind {
		delete(s.assumedClaims, b.Volume)
	}
}
