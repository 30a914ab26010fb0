// Package autoscaling describes the kinds of autoscaling, one file each.
package autoscaling

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&horizontalPodAutoscaler,
	&horizontalPodAutoscalerV1,
}
