package networking

import (
	networking "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var networkPolicy = registry.Kind[*networking.NetworkPolicy]{
	GroupVersion: networking.SchemeGroupVersion, Kind: "NetworkPolicy",
	Resource: "networkpolicies", ShortNames: []string{"netpol"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Generation: registry.OnSpec,
	Default:    defaults.NetworkPolicy,
	Validate:   validate.NetworkPolicy,
	Table:      table.NetworkPolicy,
}
