package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"
)

// PodResize refuses a resize that the pod's node could not grant if it were
// empty: no one is left waiting for what can never be.
const PodResizeValidator = "PodResizeValidator"

// Types of the cause that a refused resize carries.
const (
	causeCapacity metav1.CauseType = "NodeCapacity"
	causePlatform metav1.CauseType = "UnsupportedPlatform"
)

type podResize struct{ *nodeReader }

func newPodResizeValidator(io.Reader) (admission.Interface, error) {
	return &podResize{newNodeReader(PodResizeValidator, admission.Update)}, nil
}

func (p *podResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, alsoOk := a.GetOldObject().(*corev1.Pod)
	// A write that leaves the spec alone asks for nothing.
	if !ok || !alsoOk || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	node, err := p.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if os, known := node.Labels[corev1.LabelOSStable]; known && os != "linux" {
		return refusedResize(a, causePlatform, fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if err := withinAllocatable(pod, node.Status.Allocatable); err != nil {
		return refusedResize(a, causeCapacity, err)
	}
	return nil
}

// withinAllocatable compares what a pod requests with all that a node offers,
// cpu in thousandths, memory in bytes. Clients match the text.
func withinAllocatable(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var over []string
	if want, have := requests.Cpu(), allocatable.Cpu(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want.MilliValue(), have.MilliValue()))
	}
	if want, have := requests.Memory(), allocatable.Memory(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", want.Value(), have.Value()))
	}
	if len(over) > 0 {
		return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(over, "; "))
	}
	return nil
}

func refusedResize(a admission.Attributes, cause metav1.CauseType, err error) error {
	refused := admission.NewForbidden(a, err)
	var status *apierrors.StatusError
	if errors.As(refused, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return refused
}
