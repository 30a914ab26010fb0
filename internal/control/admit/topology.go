package admit

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// Topology tells a pod the zone and region of its node as labels.
const PodTopologyLabels = "PodTopologyLabels"

var topologyLabels = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

type topology struct{ *nodeReader }

func newPodTopologyLabels(io.Reader) (admission.Interface, error) {
	return &topology{newNodeReader(PodTopologyLabels, admission.Create)}, nil
}

func (t *topology) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	meta, node := placement(a)
	if node == "" {
		return nil
	}
	if !t.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	found, err := t.nodes.Get(node)
	if apierrors.IsNotFound(err) {
		// Binding to a node that does not exist (yet) is no one's concern here.
		return nil
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, key := range topologyLabels {
		if value, set := found.Labels[key]; set {
			if meta.Labels == nil {
				meta.Labels = map[string]string{}
			}
			meta.Labels[key] = value
		}
	}
	return nil
}

// placement returns where a request puts a pod, and what to label: a
// binding's labels are copied to the pod.
func placement(a admission.Attributes) (*metav1.ObjectMeta, string) {
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		if isFor(a, podsResource) {
			return &o.ObjectMeta, o.Spec.NodeName
		}
	case *corev1.Binding:
		onPod := a.GetSubresource() == "binding" && a.GetResource().GroupResource() == podsResource
		if (onPod || isFor(a, bindingsResource)) && (o.Target.Kind == "Node" || o.Target.Kind == "") {
			return &o.ObjectMeta, o.Target.Name
		}
	}
	return nil, ""
}
