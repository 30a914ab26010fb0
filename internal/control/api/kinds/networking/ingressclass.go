package networking

import (
	networking "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var ingressClass = registry.Kind[*networking.IngressClass]{
	GroupVersion: networking.SchemeGroupVersion, Kind: "IngressClass",
	Resource:                 "ingressclasses",
	AllowUnconditionalUpdate: true,
	Generation:               registry.OnSpec,
	Default:                  defaults.IngressClass,
	Validate:                 validate.IngressClass, ValidateUpdate: validate.IngressClassUpdate,
	Table:        table.IngressClass,
	NoWatchCache: true,
}
