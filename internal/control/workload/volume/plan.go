// Package volume binds PersistentVolumeClaims to PersistentVolumes, hands
// claims to external provisioners, and guards both from deletion while in use.
package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/storage/volume"
)

// Annotations external provisioners look for; both spellings are in use.
const (
	provisionerAnnotation     = "volume.kubernetes.io/storage-provisioner"
	betaProvisionerAnnotation = "volume.beta.kubernetes.io/storage-provisioner"
	yes                       = "yes"
)

// event is one event on the object planned for.
type event struct{ Type, Reason, Message string }

// claimPlan is what to do about a claim.
type claimPlan struct {
	// Bind is the volume to bind it to, in the steps of Steps.
	Bind *v1.PersistentVolume
	// Provisioner is who is to make a volume; empty when no one is.
	Provisioner string
	Phase       v1.PersistentVolumeClaimPhase
	Event       *event
	Because     string
}

// forClaim plans for one claim. volumes are all that exist, class is the
// claim's class or nil.
func forClaim(c *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, class *storagev1.StorageClass) claimPlan {
	if metav1.HasAnnotation(c.ObjectMeta, helper.AnnBindCompleted) {
		return boundClaim(c, byName(volumes, c.Spec.VolumeName))
	}
	if c.Spec.VolumeName != "" {
		return namedClaim(c, byName(volumes, c.Spec.VolumeName))
	}
	delay := class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	chosen := c.Annotations[helper.AnnSelectedNode] != ""
	pv, err := helper.FindMatchingVolume(c, volumes, nil, nil, delay, true)
	switch {
	case err != nil:
		return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeWarning, "FailedBinding", err.Error()}}
	case pv != nil:
		return claimPlan{Bind: pv, Phase: v1.ClaimBound, Because: "volume " + pv.Name + " matches"}
	case delay && !chosen:
		return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeNormal, "WaitForFirstConsumer",
			"waiting for first consumer to be created before binding"}}
	case class != nil && class.Provisioner != helper.NotSupportedProvisioner:
		return claimPlan{Phase: v1.ClaimPending, Provisioner: class.Provisioner, Event: &event{v1.EventTypeNormal, "ExternalProvisioning",
			fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' or manually by the system "+
				"administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
				class.Provisioner)}}
	case class == nil && helper.GetPersistentVolumeClaimClass(c) != "":
		return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeWarning, "ProvisioningFailed",
			fmt.Sprintf("storageclass.storage.k8s.io %q not found", helper.GetPersistentVolumeClaimClass(c))}}
	}
	return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeNormal, "FailedBinding",
		"no persistent volumes available for this claim and no storage class is set"}}
}

// boundClaim checks a claim that was bound once: it stays bound to that volume
// or is lost.
func boundClaim(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) claimPlan {
	lost := func(reason, msg string) claimPlan {
		p := claimPlan{Phase: v1.ClaimLost}
		if c.Status.Phase != v1.ClaimLost {
			p.Event = &event{v1.EventTypeWarning, reason, msg}
		}
		return p
	}
	switch {
	case c.Spec.VolumeName == "":
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case pv == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == c.UID:
		return claimPlan{Bind: pv, Phase: v1.ClaimBound, Because: "it was bound to volume " + pv.Name}
	}
	return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

// namedClaim plans for a claim that asks for a volume by name.
func namedClaim(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) claimPlan {
	if pv == nil {
		return claimPlan{Phase: v1.ClaimPending} // until it exists
	}
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil:
		if msg := mismatch(c, pv); msg != "" {
			return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeWarning, "VolumeMismatch",
				fmt.Sprintf("Cannot bind to requested volume %q: %s", pv.Name, msg)}}
		}
		return claimPlan{Bind: pv, Phase: v1.ClaimBound, Because: "it asks for volume " + pv.Name}
	case helper.IsVolumeBoundToClaim(pv, c):
		return claimPlan{Bind: pv, Phase: v1.ClaimBound, Because: "it and volume " + pv.Name + " name each other"}
	}
	return claimPlan{Phase: v1.ClaimPending, Event: &event{v1.EventTypeWarning, "FailedBinding",
		fmt.Sprintf("volume %q already bound to a different claim.", pv.Name)}}
}

func mismatch(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) string {
	want, have := c.Spec.Resources.Requests[v1.ResourceStorage], pv.Spec.Capacity[v1.ResourceStorage]
	switch {
	case have.Cmp(want) < 0:
		return "requested PV is too small"
	case helper.GetPersistentVolumeClass(pv) != helper.GetPersistentVolumeClaimClass(c):
		return "storageClassName does not match"
	case helper.CheckVolumeModeMismatches(&c.Spec, &pv.Spec):
		return "incompatible volumeMode"
	case !helper.CheckAccessModes(c, pv):
		return "incompatible accessMode"
	}
	return ""
}

func byName(volumes []*v1.PersistentVolume, name string) *v1.PersistentVolume {
	for _, v := range volumes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// volumePlan is what to do about a volume.
type volumePlan struct {
	Phase v1.PersistentVolumePhase
	// Message goes into the status with the phase.
	Message string
	// Unbind frees the volume from a claim that bound elsewhere.
	Unbind bool
	Event  *event
}

// forVolume plans for one volume. claim is the claim it names, live, or nil if
// that does not exist (any more, or as the same object).
func forVolume(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) volumePlan {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return volumePlan{Phase: v1.VolumeAvailable}
	}
	if claim == nil || claim.UID != ref.UID {
		return released(pv)
	}
	switch {
	case claim.Spec.VolumeName == pv.Name:
		return volumePlan{Phase: v1.VolumeBound}
	case claim.Spec.VolumeName == "":
		return volumePlan{Phase: pv.Status.Phase} // the claim's plan goes on
	case pv.Annotations["pv.kubernetes.io/provisioned-by"] != "" &&
		pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete:
		return released(pv) // made for this claim, which took another: its provisioner deletes it
	}
	return volumePlan{Phase: v1.VolumeAvailable, Unbind: true}
}

// released says what becomes of a volume that its claim needs no more.
// Provisioners delete what they made; berth deletes no data itself.
func released(pv *v1.PersistentVolume) volumePlan {
	p := volumePlan{Phase: v1.VolumeReleased}
	if pv.Status.Phase == v1.VolumeFailed {
		p.Phase, p.Message = v1.VolumeFailed, pv.Status.Message
	}
	if pv.Spec.CSI != nil || pv.Annotations["pv.kubernetes.io/provisioned-by"] != "" || pv.Status.Phase == v1.VolumeFailed {
		return p
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case v1.PersistentVolumeReclaimDelete:
		p.Phase, p.Message = v1.VolumeFailed,
			"no provisioner made this volume, so none can delete it: delete it by hand or set persistentVolumeReclaimPolicy to Retain"
		p.Event = &event{v1.EventTypeWarning, "VolumeFailedDelete", p.Message}
	case v1.PersistentVolumeReclaimRecycle:
		p.Phase, p.Message = v1.VolumeFailed, "persistentVolumeReclaimPolicy Recycle is not supported; supported are Retain and Delete"
		p.Event = &event{v1.EventTypeWarning, "VolumeFailedRecycle", p.Message}
	}
	return p
}
