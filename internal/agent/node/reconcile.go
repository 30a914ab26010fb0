package node

import (
	v1 "k8s.io/api/core/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// reconciledLabels are the labels the agent keeps equal to what it would
// register with, where it would register any; an empty value removes them. All
// others belong to another party once the object exists.
var reconciledLabels = []string{
	v1.LabelHostname,
	v1.LabelTopologyZone, v1.LabelTopologyRegion,
	v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
	v1.LabelInstanceTypeStable, v1.LabelInstanceType,
	v1.LabelOSStable, v1.LabelArchStable, kubeletapis.LabelOS, kubeletapis.LabelArch,
}

// metaChange is what to correct in the metadata of an existing Node. A nil
// value removes the key.
type metaChange struct {
	Labels      map[string]*string
	Annotations map[string]*string
}

// Empty tells whether nothing is to be corrected.
func (c metaChange) Empty() bool { return len(c.Labels) == 0 && len(c.Annotations) == 0 }

// reconcile compares an existing Node with the one this agent would register
// and returns what to correct. Taints, the provider ID and labels outside a
// fixed list are only set at creation: afterwards people and controllers own
// them.
func reconcile(id Identity, existing *v1.Node) metaChange {
	want := initial(id)
	change := metaChange{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	for _, key := range reconciledLabels {
		// Without a wish of our own the value is another party's: a cloud
		// controller's zone, or one that a person set.
		if value, wished := want.Labels[key]; wished {
			correct(change.Labels, existing.Labels, key, value)
		}
	}
	correct(change.Annotations, existing.Annotations, annotationAttachDetach, want.Annotations[annotationAttachDetach])
	correct(change.Annotations, existing.Annotations, annotationProvidedNodeIP, want.Annotations[annotationProvidedNodeIP])
	return change
}

// hostLabels say what the host is. No one can mean anything else by them:
// unlike others they are corrected at any time, as in a kubelet.
var hostLabels = []string{v1.LabelOSStable, v1.LabelArchStable}

// reconcileHost is Reconcile for the labels of the host alone.
func reconcileHost(id Identity, existing *v1.Node) metaChange {
	want := initial(id)
	change := metaChange{Labels: map[string]*string{}}
	for _, key := range hostLabels {
		correct(change.Labels, existing.Labels, key, want.Labels[key])
	}
	return change
}

func correct(changes map[string]*string, have map[string]string, key, want string) {
	value, exists := have[key]
	switch {
	case want == "" && exists:
		changes[key] = nil
	case want != "" && value != want:
		changes[key] = &want
	}
}
