// Package resource describes the kinds of resource.k8s.io, one file each.
package resource

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&resourceClaim,
	&resourceClaimTemplate,
	&resourceSlice,
	&deviceClass,
}
