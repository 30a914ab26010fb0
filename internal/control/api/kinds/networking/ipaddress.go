package networking

import (
	networking "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var ipAddress = registry.Kind[*networking.IPAddress]{
	GroupVersion: networking.SchemeGroupVersion, Kind: "IPAddress",
	Resource: "ipaddresses", ShortNames: []string{"ip"},
	AllowUnconditionalUpdate: true,
	ValidateName:             validate.IPAddressName,
	Validate:                 validate.IPAddress, ValidateUpdate: validate.IPAddressUpdate,
	Table: table.IPAddress,
}
