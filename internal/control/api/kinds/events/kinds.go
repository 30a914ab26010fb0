// Package events describes the kinds of events.k8s.io, one file each.
package events

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&event,
}
