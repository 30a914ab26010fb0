package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

const (
	countDeviceClaims = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	// devicesSuffix marks quota on the devices of one class:
	// <class>.deviceclass.resource.k8s.io/devices (KEP-4381).
	devicesSuffix = ".deviceclass.resource.k8s.io/devices"
)

func deviceEvaluator(cfg Config) *evaluator {
	return &evaluator{
		group: resourcev1.GroupName, resource: "resourceclaims", changes: createdOrUpdated, scope: generic.MatchesNoScopeFunc,
		list: cfg.listOf(schema.GroupVersionResource{Group: resourcev1.GroupName, Version: "v1", Resource: "resourceclaims"}),
		tracks: func(name corev1.ResourceName) bool {
			return name == countDeviceClaims || strings.HasSuffix(string(name), devicesSuffix)
		},
		lacks: func([]corev1.ResourceName, runtime.Object) error { return nil },
		usage: func(item runtime.Object) (corev1.ResourceList, error) {
			claim, ok := item.(*resourcev1.ResourceClaim)
			if !ok {
				return nil, wrongType("ResourceClaim", item)
			}
			return deviceUsage(claim), nil
		},
	}
}

// deviceUsage returns what a resource claim may cost at most: which devices
// it gets is not known when it is made. A request for all devices counts as
// the largest allocation there can be, and of alternatives the dearest counts
// in each class.
func deviceUsage(claim *resourcev1.ResourceClaim) corev1.ResourceList {
	used := corev1.ResourceList{countDeviceClaims: *resource.NewQuantity(1, resource.DecimalSI)}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		worst := map[string]int64{}
		if e := request.Exactly; e != nil {
			worst[e.DeviceClassName] = devices(e.AllocationMode, e.Count)
		}
		for _, s := range request.FirstAvailable {
			worst[s.DeviceClassName] = max(worst[s.DeviceClassName], devices(s.AllocationMode, s.Count))
		}
		for class, n := range worst {
			name := corev1.ResourceName(class + devicesSuffix)
			sum := used[name]
			sum.Add(*resource.NewQuantity(n, resource.DecimalSI))
			used[name] = sum
		}
	}
	return used
}

func devices(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	if mode == resourcev1.DeviceAllocationModeAll {
		return resourcev1.AllocationResultsMaxSize
	}
	return count
}
