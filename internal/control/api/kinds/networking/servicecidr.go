package networking

import (
	networking "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var serviceCIDR = registry.Kind[*networking.ServiceCIDR]{
	GroupVersion: networking.SchemeGroupVersion, Kind: "ServiceCIDR",
	Resource:                 "servicecidrs",
	AllowUnconditionalUpdate: true,
	HasStatus:                true,
	Validate:                 validate.ServiceCIDR, ValidateUpdate: validate.ServiceCIDRUpdate,
	Table: table.ServiceCIDR,
}
