// Package networking describes the kinds of networking.k8s.io, one file each.
package networking

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&ingress,
	&ingressClass,
	&networkPolicy,
	&serviceCIDR,
	&ipAddress,
}
