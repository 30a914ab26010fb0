// Package coordination describes the kinds of coordination.k8s.io, one file each.
package coordination

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&lease,
}
