// Package localvolume is the CSI driver local.berth.dev: persistent volumes
// that are directories, or filesystems in files, below one directory of the
// node.
//
// The life of a volume, and where it stands meanwhile:
//
//	CreateVolume          NodePublishVolume        DeleteVolume
//	making/ID ──rename──▶ volumes/ID ◀──▶ published ──▶ trash/ID ──▶ gone
//	   │                  volume.json                      │
//	   └── a crash leaves it here: removed at start        └── and continued at start
//
// A volume is a folder named by its id. It holds volume.json (the record), and
// data/ (kind directory) or image (kind image, mounted at mount/ while a pod
// uses it). Pods see data/ or what is in the image, never the folder itself;
// nothing outside the driver's directory is ever named by a request.
//
// The size of a volume is enforced by the kernel where it says so: a project
// quota for kind directory, the file's own size for kind image. Where neither
// can be, the volume's context says "enforced": "false".
package localvolume

// Name is the driver's name.
const Name = "local.berth.dev"

// TopologyKey labels a node for this driver; its value is the node's id.
const TopologyKey = "topology.local.berth.dev/node"

// The parameters of a StorageClass, and the keys of a volume's context.
const (
	// TypeParameter is "directory" (the default) or "image".
	TypeParameter = "type"
	// EnforcedContext tells whether the kernel holds the volume to its size.
	EnforcedContext = "enforced"
	// UsedContext, in ListVolumes, tells whether a pod ever had the volume.
	UsedContext = "used"
)
