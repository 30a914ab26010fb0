package admit

import (
	"context"
	"errors"
	"fmt"
	"io"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// AdminAccess keeps administrative access to devices, which sees what others
// use, to namespaces whose label says that they may have it.
const DeviceAdminAccess = "DeviceAdminAccess"

type adminAccess struct {
	*admission.Handler
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
}

func newDeviceAdminAccess(io.Reader) (admission.Interface, error) {
	return &adminAccess{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (p *adminAccess) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

func (p *adminAccess) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	namespaces := f.Core().V1().Namespaces()
	p.namespaces = namespaces.Lister()
	p.SetReadyFunc(allSynced(namespaces.Informer()))
}

func (p *adminAccess) ValidateInitialization() error {
	if p.namespaces == nil || p.client == nil {
		return errors.New(DeviceAdminAccess + " needs an informer factory and a client")
	}
	return nil
}

func (p *adminAccess) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	path := adminPath(a.GetObject())
	// What was let through once may be written again: by a label removed
	// no one should be kept from removing a finalizer.
	if path == nil || a.GetOperation() == admission.Update && adminPath(a.GetOldObject()) != nil {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	allowed, err := p.allowed(ctx, a.GetNamespace())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if allowed {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{field.Forbidden(path,
		fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
			resourcev1.DRAAdminNamespaceLabelKey))})
}

// allowed looks at the namespace's label; one that is not there, or was not a
// moment ago, is asked for.
func (p *adminAccess) allowed(ctx context.Context, name string) (bool, error) {
	if ns, err := p.namespaces.Get(name); err == nil && ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return true, nil
	}
	ns, err := p.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("looking for the label %s of namespace %s: %w", resourcev1.DRAAdminNamespaceLabelKey, name, err)
	}
	return ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true", nil
}

// adminPath is where an object asks for administrative access, or shows that a
// claim has it; nil for nowhere.
func adminPath(object any) *field.Path {
	var spec *resourcev1.ResourceClaimSpec
	at := field.NewPath("spec")
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		spec = &o.Spec
		if o.Status.Allocation != nil {
			for i, r := range o.Status.Allocation.Devices.Results {
				if r.AdminAccess != nil && *r.AdminAccess {
					return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
				}
			}
		}
	case *resourcev1.ResourceClaimTemplate:
		spec, at = &o.Spec.Spec, at.Child("spec")
	default:
		return nil
	}
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return at.Child("devices", "requests").Index(i).Child("exactly", "adminAccess")
		}
	}
	return nil
}
