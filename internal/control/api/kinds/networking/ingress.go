package networking

import (
	networking "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var ingress = registry.Kind[*networking.Ingress]{
	GroupVersion: networking.SchemeGroupVersion, Kind: "Ingress",
	Resource: "ingresses", ShortNames: []string{"ing"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:  true,
	Generation: registry.OnSpec,
	Validate:   validate.Ingress, ValidateUpdate: validate.IngressUpdate, ValidateStatusUpdate: validate.IngressStatusUpdate,
	Table: table.Ingress,
}
