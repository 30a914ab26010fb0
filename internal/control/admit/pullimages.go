package admit

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
)

// AlwaysPullImages makes every image be pulled at each start of a container, so
// that no one runs an image of another's without the right to pull it.
const AlwaysPullImages = "AlwaysPullImages"

type pullImages struct{ *admission.Handler }

func newAlwaysPullImages(io.Reader) (admission.Interface, error) {
	return &pullImages{admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (p *pullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod := podWithNewImages(a); pod != nil {
		for _, policy := range pullPolicies(pod) {
			*policy = corev1.PullAlways
		}
	}
	return nil
}

// Validate sees what webhooks made of the pod since.
func (p *pullImages) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podWithNewImages(a)
	if pod == nil {
		return nil
	}
	for at, policy := range pullPolicies(pod) {
		if *policy != corev1.PullAlways {
			return admission.NewForbidden(a, fmt.Errorf("%s.imagePullPolicy: %q: must be %q while the admission plugin %s is on", at,
				*policy,
				corev1.PullAlways, AlwaysPullImages))
		}
	}
	return nil
}

// podWithNewImages returns the pod a request writes if it brings an image that
// the pod did not have, nil otherwise: a policy that is stored stays.
func podWithNewImages(a admission.Attributes) *corev1.Pod {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "" && a.GetSubresource() != "ephemeralcontainers" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil
	}
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && imagesOf(old).IsSuperset(imagesOf(pod)) {
		return nil
	}
	return pod
}

func imagesOf(pod *corev1.Pod) sets.Set[string] {
	images := sets.New[string]()
	for i := range pod.Spec.InitContainers {
		images.Insert(pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.Containers {
		images.Insert(pod.Spec.Containers[i].Image)
	}
	for i := range pod.Spec.EphemeralContainers {
		images.Insert(pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			images.Insert(image.Reference)
		}
	}
	return images
}

// pullPolicies are the pod's policies by their place in it.
func pullPolicies(pod *corev1.Pod) map[string]*corev1.PullPolicy {
	out := map[string]*corev1.PullPolicy{}
	for i := range pod.Spec.InitContainers {
		out[fmt.Sprintf("spec.initContainers[%d]", i)] = &pod.Spec.InitContainers[i].ImagePullPolicy
	}
	for i := range pod.Spec.Containers {
		out[fmt.Sprintf("spec.containers[%d]", i)] = &pod.Spec.Containers[i].ImagePullPolicy
	}
	for i := range pod.Spec.EphemeralContainers {
		out[fmt.Sprintf("spec.ephemeralContainers[%d]", i)] = &pod.Spec.EphemeralContainers[i].ImagePullPolicy
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			out[fmt.Sprintf("spec.volumes[%d]", i)] = &image.PullPolicy
		}
	}
	return out
}
