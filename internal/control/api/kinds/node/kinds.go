// Package node describes the kinds of node.k8s.io, one file each.
package node

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&runtimeClass,
}
