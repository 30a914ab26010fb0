package discovery

import (
	"context"

	discovery "k8s.io/api/discovery/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var endpointSlice = registry.Kind[*discovery.EndpointSlice]{
	GroupVersion: discovery.SchemeGroupVersion, Kind: "EndpointSlice",
	Resource:        "endpointslices",
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Generation: registry.OnAll,
	Default:    defaults.EndpointSlice,
	Validate:   validate.EndpointSlice, ValidateUpdate: validate.EndpointSliceUpdate,
	PrepareForCreate: func(_ context.Context, s *discovery.EndpointSlice) { dropDeprecatedTopology(s) },
	PrepareForUpdate: func(_ context.Context, s, _ *discovery.EndpointSlice) { dropDeprecatedTopology(s) },
	Table:            table.EndpointSlice,
}

// dropDeprecatedTopology drops what version 1 of the API has taken over from
// the beta and never writes.
func dropDeprecatedTopology(s *discovery.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
	}
}
