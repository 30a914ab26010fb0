// Package policy describes the kinds of policy, one file each.
package policy

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&podDisruptionBudget,
}
