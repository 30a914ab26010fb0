package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// bindingREST assigns a pod to a node: POST pods/{name}/binding.
type bindingREST struct {
	store *registry.Store
	now   func() time.Time
}

func (r *bindingREST) New() runtime.Object   { return &v1.Binding{} }
func (r *bindingREST) Destroy()              {}
func (r *bindingREST) NamespaceScoped() bool { return true }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps uid and
// resourceVersion of the request: they are the binding's preconditions on the
// pod.
func (r *bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create binds the pod. The node need not exist: anyone who binds answers for
// it, and pod garbage collection cleans up.
func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*v1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := checkBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Binding").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.assign(ctx, binding, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func checkBinding(b *v1.Binding) field.ErrorList {
	var errs field.ErrorList
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	return errs
}

// assign writes the node into the pod in one compare-and-swap, so that of two
// schedulers one loses with a Conflict.
func (r *bindingREST) assign(ctx context.Context, b *v1.Binding, dryRun bool) error {
	key, err := r.store.KeyFunc(ctx, b.Name)
	if err != nil {
		return err
	}
	pre := &storage.Preconditions{}
	if b.UID != "" {
		pre.UID = &b.UID
	}
	if b.ResourceVersion != "" {
		pre.ResourceVersion = &b.ResourceVersion
	}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, &v1.Pod{}, false, pre,
		storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			pod, ok := in.(*v1.Pod)
			if !ok {
				return nil, fmt.Errorf("binding pod %s: stored object is a %T", b.Name, in)
			}
			if err := bind(pod, b, metav1.NewTime(r.now())); err != nil {
				return nil, err
			}
			return pod, nil
		}), dryRun, nil)
	if err == nil {
		return nil
	}
	err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, podResource, b.Name), podResource, b.Name)
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewConflict(v1.Resource("pods/binding"), b.Name, err)
}

// bind is the effect of a binding on a pod. It does not count as a spec change:
// generation stays.
func bind(pod *v1.Pod, b *v1.Binding, now metav1.Time) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	pod.Annotations = merged(pod.Annotations, b.Annotations)
	pod.Labels = merged(pod.Labels, b.Labels)
	pod.Status.NominatedNodeName = ""
	setCondition(&pod.Status, v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionTrue, ObservedGeneration: pod.Generation,
	}, now)
	return nil
}

// legacyBindingREST serves POST bindings, which names the pod in the body only.
type legacyBindingREST struct{ *bindingREST }

func (r *legacyBindingREST) GetSingularName() string { return "binding" }

func (r *legacyBindingREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*v1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return r.bindingREST.Create(ctx, b.Name, b, validate, options)
}
