// Package storage describes the kinds of storage.k8s.io, one file each.
package storage

import "github.com/berth-dev/berth/internal/control/api/registry"

// Kinds are all kinds of the group.
var Kinds = []registry.Resource{
	&storageClass,
	&csiDriver,
	&csiNode,
	&csiStorageCapacity,
	&volumeAttachment,
	&volumeAttributesClass,
}
