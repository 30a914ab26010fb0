package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	nodelisters "k8s.io/client-go/listers/node/v1"
)

// RuntimeClass adds to a pod what its runtime class costs and where it runs.
const RuntimeClass = "RuntimeClass"

type runtimeClass struct {
	*admission.Handler
	client  kubernetes.Interface
	classes nodelisters.RuntimeClassLister
}

func newRuntimeClass(io.Reader) (admission.Interface, error) {
	return &runtimeClass{Handler: admission.NewHandler(admission.Create)}, nil
}

func (r *runtimeClass) SetExternalKubeClientSet(client kubernetes.Interface) { r.client = client }

func (r *runtimeClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Node().V1().RuntimeClasses()
	r.classes = classes.Lister()
	r.SetReadyFunc(allSynced(classes.Informer()))
}

func (r *runtimeClass) ValidateInitialization() error {
	if r.classes == nil {
		return errors.New(RuntimeClass + " needs an informer factory")
	}
	return nil
}

// classOf returns the class of the pod in the request: nil without an error
// when there is no pod or it names none.
func (r *runtimeClass) classOf(ctx context.Context, a admission.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod := podOf(a)
	if pod == nil || pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	if !r.WaitForReady() {
		return nil, nil, errors.New("not yet ready to handle request")
	}
	name := *pod.Spec.RuntimeClassName
	class, err := cachedOrLive(ctx, r.client,
		func() (*nodev1.RuntimeClass, error) { return r.classes.Get(name) },
		func(ctx context.Context) (*nodev1.RuntimeClass, error) {
			return r.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
		})
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("pod rejected: RuntimeClass %q not found", name)
	}
	return pod, class, err
}

func (r *runtimeClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, class, err := r.classOf(ctx, a)
	if err == nil && class != nil {
		err = applyRuntimeClass(pod, class)
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

func applyRuntimeClass(pod *corev1.Pod, class *nodev1.RuntimeClass) error {
	if class.Overhead != nil {
		if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	merged := maps.Clone(pod.Spec.NodeSelector)
	for key, value := range class.Scheduling.NodeSelector {
		if own, set := merged[key]; set && own != value {
			return fmt.Errorf("pod rejected: conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key,
				value, key, own)
		}
		if merged == nil {
			merged = map[string]string{}
		}
		merged[key] = value
	}
	pod.Spec.NodeSelector = merged
	for _, t := range class.Scheduling.Tolerations {
		if !hasToleration(pod.Spec.Tolerations, t) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return nil
}

func hasToleration(have []corev1.Toleration, t corev1.Toleration) bool {
	for i := range have {
		if equality.Semantic.DeepEqual(have[i], t) {
			return true
		}
	}
	return false
}

func (r *runtimeClass) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, class, err := r.classOf(ctx, a)
	if err == nil && pod != nil {
		err = checkOverhead(pod, class)
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// checkOverhead holds an overhead against the class: no one may make a pod
// look bigger or smaller than its runtime says.
func checkOverhead(pod *corev1.Pod, class *nodev1.RuntimeClass) error {
	switch {
	case class != nil && class.Overhead != nil:
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
	case len(pod.Spec.Overhead) > 0:
		return errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}
