// Package core describes the kinds of the core group, one file each.
package core

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&Pod,
	&podTemplate,
	&Service,
	&endpoints,
	&Node,
	&Namespace,
	&secret,
	&configMap,
	&serviceAccount,
	&event,
	&replicationController,
	&limitRange,
	&resourceQuota,
	&persistentVolume,
	&persistentVolumeClaim,
}
