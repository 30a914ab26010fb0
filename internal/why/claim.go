package why

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// noProvisioner is the provisioner of classes whose volumes people make.
const noProvisioner = "kubernetes.io/no-provisioner"

func explainClaim(w *World, namespace, name string) *Answer {
	c := one[v1.PersistentVolumeClaim](w, namespace, name)
	if c == nil {
		return nil
	}
	return claim(w, c, false).from("PersistentVolumeClaim")
}

// users are the pods that mount a claim.
func users(w *World, c *v1.PersistentVolumeClaim) (out []*v1.Pod) {
	for _, p := range all[v1.Pod](w) {
		for _, v := range p.Spec.Volumes {
			if p.Namespace == c.Namespace && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name {
				out = append(out, p)
			}
		}
	}
	return out
}

// claim explains a claim; forPod is set if a pod's answer needs it, so that the
// two do not ask each other for ever.
func claim(w *World, c *v1.PersistentVolumeClaim, forPod bool) *Answer {
	events := w.events("PersistentVolumeClaim", c.Namespace, c.Name)
	if c.DeletionTimestamp != nil {
		for _, p := range users(w, c) {
			return found(Waiting, "ClaimInUse", "its deletion waits: pod %s still uses it (finalizer kubernetes.io/pvc-protection)",
				p.Name).
				at("metadata.finalizers").held("Pod", p.Namespace, p.Name).remedy("delete the pod first")
		}
		if a := deletionHeld(w, c, "claim"); a != nil {
			return a
		}
	}
	switch c.Status.Phase {
	case v1.ClaimBound:
		for _, cond := range c.Status.Conditions {
			if cond.Status == v1.ConditionTrue {
				return found(Waiting, string(cond.Type), "bound to volume %s, and %s: %s", c.Spec.VolumeName, cond.Type,
					brief(cond.Message, 160))
			}
		}
		return found(Healthy, "Healthy", "nothing is wrong: it is bound to volume %s", c.Spec.VolumeName)
	case v1.ClaimLost:
		return found(Failing, "ClaimLost", "its PersistentVolume %s does not exist any more or belongs to another claim",
			c.Spec.VolumeName).
			at("spec.volumeName").held("PersistentVolume", "", c.Spec.VolumeName)
	}
	if c.Spec.VolumeName != "" {
		return namedVolume(w, c, events)
	}
	return pendingClaim(w, c, events, forPod)
}

func namedVolume(w *World, c *v1.PersistentVolumeClaim, events []*v1.Event) *Answer {
	name := c.Spec.VolumeName
	if e := lastEvent(events, "VolumeMismatch", "FailedBinding"); e != nil {
		return found(Failing, e.Reason, "it asks for volume %s: %s", name, brief(e.Message, 160)).at("spec.volumeName").
			held("PersistentVolume", "", name)
	}
	if w.absent("PersistentVolume", "", name) {
		return found(Failing, "VolumeMissing", "PersistentVolume %s, which it asks for, does not exist", name).at("spec.volumeName").
			held("PersistentVolume", "", name).remedy("create the volume, or leave spec.volumeName out")
	}
	return found(Waiting, "Binding", "it asks for volume %s and is not bound to it yet", name).at("spec.volumeName")
}

func pendingClaim(w *World, c *v1.PersistentVolumeClaim, events []*v1.Event, forPod bool) *Answer {
	className := ""
	if c.Spec.StorageClassName != nil {
		className = *c.Spec.StorageClassName
	}
	class := one[storagev1.StorageClass](w, "", className)
	if className != "" && w.absent("StorageClass", "", className) {
		return found(Failing, "ClassMissing", "StorageClass %s does not exist", className).at("spec.storageClassName").
			held("StorageClass", "", className).remedy("create the class, or name one of `berth kubectl get storageclass`")
	}
	if className == "" {
		return found(Failing, "NoClass", "it names no StorageClass, there is no default class, and no PersistentVolume matches it").
			at("spec.storageClassName").remedy("name a class, or mark one as default (storageclass.kubernetes.io/is-default-class)")
	}
	if e := lastEvent(events, "ProvisioningFailed"); e != nil {
		return found(Failing, "ProvisioningFailed", "no volume can be made: %s", brief(e.Message, 220)).held("StorageClass", "", className).
			at("spec").fact("event", "%d times, last %s ago", max(e.Count, 1), Age(w.Now, eventTime(e)))
	}
	if class != nil && class.Provisioner == noProvisioner {
		return found(Failing, "NoVolume", "no PersistentVolume of class %s matches it (%s), and the class makes none (%s)", className,
			claimText(c), noProvisioner).at("spec").held("StorageClass", "", className).
			remedy("create a PersistentVolume of that class, size and access mode")
	}
	if delayed(class) && c.Annotations["volume.kubernetes.io/selected-node"] == "" {
		return firstConsumer(w, c, className, forPod)
	}
	provisioner := className
	if class != nil {
		provisioner = class.Provisioner
	}
	return found(Waiting, "ExternalProvisioning", "provisioner %s of class %s has not made its volume", provisioner, className).
		at("provisioner of the StorageClass").held("StorageClass", "", className).
		remedy("check that the provisioner's pods run and that its name is right")
}

func delayed(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// firstConsumer tells what a claim of a delayed class waits for.
func firstConsumer(w *World, c *v1.PersistentVolumeClaim, class string, forPod bool) *Answer {
	pods := users(w, c)
	if a := w.unreadable(Read{Kind: "Pod", Namespace: c.Namespace}); a != nil && len(pods) == 0 {
		return a
	}
	if len(pods) == 0 && !forPod {
		return found(Waiting, "WaitForFirstConsumer", "it waits for its first pod: class %s binds when a pod uses it, and none does",
			class).
			at("volumeBindingMode of the StorageClass").held("StorageClass", "",
			class).remedy("create the pod that uses it; nothing is wrong")
	}
	if !forPod {
		for _, p := range pods {
			if a := podUnscheduled(w, p, w.events("Pod", p.Namespace, p.Name)); a != nil {
				a.Cause = fmt.Sprintf("it waits for pod %s to be scheduled: %s", p.Name, a.Cause)
				return a.held("Pod", p.Namespace, p.Name)
			}
		}
	}
	if forPod {
		return nil // the pod is not held by it: the scheduler says why itself
	}
	return found(Waiting, "WaitForFirstConsumer", "class %s binds it when the scheduler has placed pod %s", class, pods[0].Name)
}

// claimText is what a claim asks for.
func claimText(c *v1.PersistentVolumeClaim) string {
	var modes []string
	for _, m := range c.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	size := c.Spec.Resources.Requests[v1.ResourceStorage]
	return size.String() + " " + strings.Join(modes, ",")
}
