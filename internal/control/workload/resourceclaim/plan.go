// Package resourceclaim makes the resource claims that pods ask for by
// template, and lets claims go that no one uses any more: their users are taken
// off, their devices given back, and those made for a pod deleted with it.
package resourceclaim

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	dra "k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/podutil"
)

// ended says that a pod uses no devices any more: all its containers have
// ended for good (the node agent says so after it gave the devices back), or
// it is deleted and never got to a node.
func ended(p *v1.Pod) bool {
	return podutil.Terminal(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// wanted is one claim of a pod that is to come from a template: Have is the
// one made earlier, which the pod's status does not name yet, or nil.
type wanted struct {
	Name, Template string
	Have           *resourceapi.ResourceClaim
}

// missing lists the claims that a pod's status does not name yet; owned are
// the claims that the pod controls. A pod that ends gets none.
func missing(p *v1.Pod, owned []*resourceapi.ResourceClaim) (out []wanted) {
	if p.DeletionTimestamp != nil || ended(p) {
		return nil
	}
	for i := range p.Spec.ResourceClaims {
		ref := &p.Spec.ResourceClaims[i]
		named := slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(s v1.PodResourceClaimStatus) bool { return s.Name == ref.Name })
		if ref.ResourceClaimTemplateName == nil || named {
			continue
		}
		w := wanted{Name: ref.Name, Template: *ref.ResourceClaimTemplateName}
		for _, c := range owned {
			if c.Annotations[resourceapi.PodResourceClaimAnnotation] == ref.Name && c.DeletionTimestamp == nil {
				w.Have = c
			}
		}
		out = append(out, w)
	}
	return out
}

// fromTemplate makes a claim for a pod. Its name begins with the pod's and the
// claim's, cut so that all of it is a name.
func fromTemplate(p *v1.Pod, name string, t *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaim {
	const most = 253 - 5 - 2 // what the API server adds, and the dashes
	base := p.Name + "-" + name
	if len(base) > most {
		base = base[:most]
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: base + "-", Namespace: p.Namespace,
		Labels: t.Spec.Labels, Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{podcontrol.Owner(p, "v1", "Pod")}}}
	for k, v := range t.Spec.Annotations {
		c.Annotations[k] = v
	}
	c.Annotations[resourceapi.PodResourceClaimAnnotation] = name
	t.Spec.Spec.DeepCopyInto(&c.Spec)
	return c
}

// toReserve lists the claims of a pod that another party than the scheduler
// put on a node: they have devices and do not name the pod.
func toReserve(p *v1.Pod, claim func(name string) *resourceapi.ResourceClaim) (out []*resourceapi.ResourceClaim) {
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || ended(p) {
		return nil
	}
	for name, owned := range dra.PodClaims(p) {
		c := claim(name)
		if c == nil || c.DeletionTimestamp != nil || c.Status.Allocation == nil || owned && !metav1.IsControlledBy(c, p) ||
			dra.IsReservedForPod(p, c, false) || len(c.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize {
			continue
		}
		out = append(out, c)
	}
	return out
}

// reserved are the claim's users with one more.
func reserved(c *resourceapi.ResourceClaim, p *v1.Pod) []resourceapi.ResourceClaimConsumerReference {
	return append(slices.Clone(c.Status.ReservedFor), resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name,
		UID: p.UID})
}

// cleanup is what one claim needs, in this order.
type cleanup struct {
	// Users are those that stay; Status says that they, or the devices, are to
	// be written; Deallocate that the devices are given back.
	Users      []resourceapi.ResourceClaimConsumerReference
	Status     bool
	Deallocate bool
	// Unprotect takes the finalizer off a claim that is being deleted.
	Unprotect bool
	// Delete is for a claim made for a pod that is gone, or will not run on.
	Delete  bool
	Because string
}

// planCleanup decides for one claim. pod returns the pod of that name and UID, or nil
// when it is certain that there is none. Users that are no pods stay.
func planCleanup(c *resourceapi.ResourceClaim, pod func(name string, uid types.UID) *v1.Pod) cleanup {
	var t cleanup
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			if p := pod(user.Name, user.UID); p == nil || ended(p) {
				t.Status, t.Because = true, fmt.Sprintf("pod %s uses it no more", user.Name)
				continue
			}
		}
		t.Users = append(t.Users, user)
	}
	if len(t.Users) > 0 {
		return t
	}
	leaving := c.DeletionTimestamp != nil
	// An allocation without users that was never used stays: the scheduler may
	// be about to add the first.
	if c.Status.Allocation != nil && (t.Status || leaving) {
		t.Status, t.Deallocate = true, true
	}
	t.Unprotect = leaving && slices.Contains(c.Finalizers, resourceapi.Finalizer)
	if owner := metav1.GetControllerOfNoCopy(c); owner != nil && owner.Kind == "Pod" && owner.APIVersion == "v1" && !leaving {
		if p := pod(owner.Name, owner.UID); p == nil || ended(p) {
			t.Delete, t.Because = true, fmt.Sprintf("it was made for pod %s, which uses it no more", owner.Name)
		}
	}
	return t
}
