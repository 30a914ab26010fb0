package defaults

import (
	dra "k8s.io/api/resource/v1"
)

func deviceClaim(c *dra.DeviceClaim) {
	for i := range c.Requests {
		request := &c.Requests[i]
		if exact := request.Exactly; exact != nil {
			allocation(&exact.AllocationMode, &exact.Count, exact.Tolerations)
		}
		for k := range request.FirstAvailable {
			sub := &request.FirstAvailable[k]
			allocation(&sub.AllocationMode, &sub.Count, sub.Tolerations)
		}
	}
}

func allocation(mode *dra.DeviceAllocationMode, count *int64, tolerations []dra.DeviceToleration) {
	zero(mode, dra.DeviceAllocationModeExactCount)
	if *mode == dra.DeviceAllocationModeExactCount {
		zero(count, 1)
	}
	for i := range tolerations {
		zero(&tolerations[i].Operator, dra.DeviceTolerationOpEqual)
	}
}

func ResourceClaim(c *dra.ResourceClaim) { deviceClaim(&c.Spec.Devices) }

func ResourceClaimTemplate(t *dra.ResourceClaimTemplate) { deviceClaim(&t.Spec.Spec.Devices) }
