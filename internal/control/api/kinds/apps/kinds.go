// Package apps describes the kinds of apps, one file each.
package apps

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&deployment,
	&replicaSet,
	&statefulSet,
	&daemonSet,
	&controllerRevision,
}
