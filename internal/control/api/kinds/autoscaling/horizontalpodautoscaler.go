package autoscaling

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var horizontalPodAutoscaler = registry.Kind[*autoscaling.HorizontalPodAutoscaler]{
	GroupVersion: autoscaling.SchemeGroupVersion, Kind: "HorizontalPodAutoscaler",
	Resource: "horizontalpodautoscalers", ShortNames: []string{"hpa"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus: true,
	Default:   defaults.HorizontalPodAutoscaler,
	Validate:  validate.HorizontalPodAutoscaler, ValidateUpdate: validate.HorizontalPodAutoscalerUpdate,
	ValidateStatusUpdate: validate.HorizontalPodAutoscalerStatusUpdate,
	OtherVersions:        []schema.GroupVersion{autoscalingv1.SchemeGroupVersion},
	Table:                table.HorizontalPodAutoscaler,
	NoWatchCache:         true,
}
