package quota

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

const (
	countServices = corev1.ResourceName("count/services")
	countClaims   = corev1.ResourceName("count/persistentvolumeclaims")
	// classSuffix marks quota on one storage class:
	// <class>.storageclass.storage.k8s.io/requests.storage and
	// .../persistentvolumeclaims.
	classSuffix = ".storageclass.storage.k8s.io/"
)

func createdOrUpdated(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
}

func serviceEvaluator(cfg Config) *evaluator {
	return &evaluator{
		resource: "services", list: cfg.list("services"), changes: createdOrUpdated, scope: generic.MatchesNoScopeFunc,
		tracks: func(name corev1.ResourceName) bool {
			switch name {
			case corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers, countServices:
				return true
			}
			return false
		},
		lacks: func([]corev1.ResourceName, runtime.Object) error { return nil },
		usage: func(item runtime.Object) (corev1.ResourceList, error) {
			service, ok := item.(*corev1.Service)
			if !ok {
				return nil, wrongType("Service", item)
			}
			return ServiceUsage(service), nil
		},
	}
}

// ServiceUsage returns what a service costs: itself, its node ports, its load
// balancer.
func ServiceUsage(service *corev1.Service) corev1.ResourceList {
	nodePorts, balancers := 0, 0
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		nodePorts = len(service.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		if ptr.Deref(service.Spec.AllocateLoadBalancerNodePorts, true) {
			nodePorts = len(service.Spec.Ports)
			break
		}
		for i := range service.Spec.Ports {
			if service.Spec.Ports[i].NodePort != 0 {
				nodePorts++
			}
		}
	}
	count := func(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
	return corev1.ResourceList{
		corev1.ResourceServices: count(1), countServices: count(1),
		corev1.ResourceServicesNodePorts: count(nodePorts), corev1.ResourceServicesLoadBalancers: count(balancers),
	}
}

func claimEvaluator(cfg Config) *evaluator {
	return &evaluator{
		resource: "persistentvolumeclaims", list: cfg.list("persistentvolumeclaims"), changes: createdOrUpdated,
		tracks: func(name corev1.ResourceName) bool {
			switch name {
			case corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage, countClaims:
				return true
			}
			_, what, ofClass := strings.Cut(string(name), classSuffix)
			return ofClass && (what == string(corev1.ResourceRequestsStorage) || what == string(corev1.ResourcePersistentVolumeClaims))
		},
		lacks: func(required []corev1.ResourceName, item runtime.Object) error {
			claim, ok := item.(*corev1.PersistentVolumeClaim)
			if !ok {
				return wrongType("PersistentVolumeClaim", item)
			}
			if _, set := claim.Spec.Resources.Requests[corev1.ResourceStorage]; set {
				return nil
			}
			for _, name := range required {
				if name == corev1.ResourceRequestsStorage {
					return fmt.Errorf("must specify %s", name)
				}
			}
			return nil
		},
		scope: func(s corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
			claim, ok := item.(*corev1.PersistentVolumeClaim)
			if !ok {
				return false, wrongType("PersistentVolumeClaim", item)
			}
			if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
				return false, nil
			}
			return attributesClassScope(claim, s)
		},
		usage: func(item runtime.Object) (corev1.ResourceList, error) {
			claim, ok := item.(*corev1.PersistentVolumeClaim)
			if !ok {
				return nil, wrongType("PersistentVolumeClaim", item)
			}
			return ClaimUsage(claim), nil
		},
	}
}

// attributesClassScope says whether any of the classes that a claim has, wants
// or is moved to is in the scope: while it changes, it counts in both.
func attributesClassScope(claim *corev1.PersistentVolumeClaim, s corev1.ScopedResourceSelectorRequirement) (bool, error) {
	names := []string{ptr.Deref(claim.Spec.VolumeAttributesClassName, ""), ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")}
	if m := claim.Status.ModifyVolumeStatus; m != nil {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	if len(names) == 0 {
		return oneOf("", s)
	}
	for _, name := range names {
		if in, err := oneOf(name, s); in || err != nil {
			return in, err
		}
	}
	return false, nil
}

// ClaimUsage returns what a claim costs, in all and in its storage class.
// While a claim shrinks back after a failed expansion, the larger size counts.
func ClaimUsage(claim *corev1.PersistentVolumeClaim) corev1.ResourceList {
	one := resource.MustParse("1")
	used := corev1.ResourceList{corev1.ResourcePersistentVolumeClaims: one, countClaims: one}
	prefix := ""
	if class := volume.GetPersistentVolumeClaimClass(claim); class != "" {
		prefix = class + classSuffix
		used[corev1.ResourceName(prefix+string(corev1.ResourcePersistentVolumeClaims))] = one
	}
	size, set := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !set {
		return used
	}
	if allocated, known := claim.Status.AllocatedResources[corev1.ResourceStorage]; known && allocated.Cmp(size) > 0 {
		size = allocated
	}
	// Quota is kept in whole bytes, as kinds of other units round up.
	size = *resource.NewQuantity(size.Value(), size.Format)
	used[corev1.ResourceRequestsStorage] = size
	if prefix != "" {
		used[corev1.ResourceName(prefix+string(corev1.ResourceRequestsStorage))] = size
	}
	return used
}
