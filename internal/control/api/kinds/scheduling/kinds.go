// Package scheduling describes the kinds of scheduling.k8s.io, one file each.
package scheduling

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&priorityClass,
}
