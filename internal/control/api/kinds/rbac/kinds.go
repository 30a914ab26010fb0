// Package rbac describes the kinds of rbac.authorization.k8s.io, one file each.
package rbac

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&role,
	&roleBinding,
	&clusterRole,
	&clusterRoleBinding,
}
