// Package flowcontrol describes the kinds of flowcontrol.apiserver.k8s.io, one file each.
package flowcontrol

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&flowSchema,
	&priorityLevelConfiguration,
}
