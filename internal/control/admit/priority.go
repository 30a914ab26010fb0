package admit

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/utils/ptr"
)

// Priority turns a pod's priority class name into its priority, and keeps
// priority classes to one global default.
const Priority = "Priority"

// systemPriorities hold even before their classes are stored: the first pods
// of a cluster name them.
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2_000_000_000,
	"system-node-critical":    2_000_001_000,
}

type priority struct {
	*admission.Handler
	client  kubernetes.Interface
	classes schedulinglisters.PriorityClassLister
}

func newPriority(io.Reader) (admission.Interface, error) {
	return &priority{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (p *priority) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

func (p *priority) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Scheduling().V1().PriorityClasses()
	p.classes = classes.Lister()
	p.SetReadyFunc(allSynced(classes.Informer()))
}

func (p *priority) ValidateInitialization() error {
	if p.classes == nil {
		return errors.New(Priority + " needs an informer factory")
	}
	return nil
}

func (p *priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	if old, isUpdate := a.GetOldObject().(*corev1.Pod); isUpdate && a.GetOperation() == admission.Update {
		// Clients that do not know these fields leave them out.
		if pod.Spec.Priority == nil {
			pod.Spec.Priority = old.Spec.Priority
		}
		if pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	class, err := p.classFor(ctx, pod)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if err := setPriority(pod, class); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// classFor finds the class a new pod is in; a pod without a name is in the
// global default, or in a nameless class of value 0.
func (p *priority) classFor(ctx context.Context, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	name := pod.Spec.PriorityClassName
	if name == "" {
		all, err := p.classes.List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("listing priority classes: %w", err)
		}
		if class := globalDefault(all); class != nil {
			return class, nil
		}
		return &schedulingv1.PriorityClass{}, nil
	}
	if _, system := systemPriorities[name]; system {
		if class, err := p.classes.Get(name); err == nil {
			return class, nil
		}
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: systemPriorities[name]}, nil
	}
	class, err := cachedOrLive(ctx, p.client,
		func() (*schedulingv1.PriorityClass, error) { return p.classes.Get(name) },
		func(ctx context.Context) (*schedulingv1.PriorityClass, error) {
			return p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no PriorityClass with name %v was found", name)
	}
	return class, err
}

// globalDefault returns the default class, the one of lowest value if there
// should be several: a pod must not gain by the mistake.
func globalDefault(all []*schedulingv1.PriorityClass) *schedulingv1.PriorityClass {
	var lowest *schedulingv1.PriorityClass
	for _, class := range all {
		if class.GlobalDefault && (lowest == nil || class.Value < lowest.Value) {
			lowest = class
		}
	}
	return lowest
}

func setPriority(pod *corev1.Pod, class *schedulingv1.PriorityClass) error {
	policy := ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority)
	if given := pod.Spec.Priority; given != nil && *given != class.Value {
		return fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed "+
			"%d from the given PriorityClass name", *given, class.Value)
	}
	if given := pod.Spec.PreemptionPolicy; given != nil && *given != policy {
		return fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller "+
			"computed %s from the given PriorityClass name", *given, policy)
	}
	pod.Spec.PriorityClassName = class.Name
	pod.Spec.Priority = ptr.To(class.Value)
	pod.Spec.PreemptionPolicy = ptr.To(policy)
	return nil
}

func (p *priority) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || !isFor(a, prioritiesResource) || !class.GlobalDefault {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("listing priority classes: %w", err))
	}
	if other := globalDefault(all); other != nil && other.Name != class.Name {
		return admission.NewForbidden(a, fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist",
			other.Name))
	}
	return nil
}
