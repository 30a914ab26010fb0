// Package discovery describes the kinds of discovery.k8s.io, one file each.
package discovery

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&endpointSlice,
}
