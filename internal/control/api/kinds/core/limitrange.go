package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var limitRange = registry.Kind[*v1.LimitRange]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "LimitRange",
	Resource: "limitranges", ShortNames: []string{"limits"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Default:      defaults.LimitRange,
	Validate:     validate.LimitRange,
	NoWatchCache: true,
}
