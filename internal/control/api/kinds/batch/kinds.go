// Package batch describes the kinds of batch, one file each.
package batch

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&job,
	&cronJob,
}
