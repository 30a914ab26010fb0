// Package container turns a pod spec and plain facts about the node into the
// runtime's sandbox and container configurations. It is pure: what has to be
// fetched is fetched by Resolve through an interface, and files that must
// exist before a container starts are returned as data by Files.
package container

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/network"
)

// Volume is one volume of a pod, ready on this node.
type Volume struct {
	// HostPath is the directory or file to mount, or the device of a block
	// volume. Empty for image volumes, which the runtime mounts itself.
	HostPath string
	// ReadOnly forbids writing through this volume whatever the mount says
	// (configMap, secret and the like).
	ReadOnly bool
	// SELinuxRelabel lets the runtime label the contents for the container.
	SELinuxRelabel bool
	// Block says that HostPath is a block device.
	Block bool
	// Image is set for image volumes.
	Image *ImageVolume
	// Groups are extra groups that may access the volume.
	Groups []int64
}

// ImageVolume is an image that the runtime mounts as a volume.
type ImageVolume struct {
	// Reference is what the pod spec says; Ref is what it resolved to.
	Reference, Ref string
}

// Input is everything configurations are made from. All of it is plain data
// and is not changed.
type Input struct {
	Pod *v1.Pod
	// Attempt of the sandbox, 0 for a pod's first.
	Attempt uint32

	NodeName string
	// NodeIPs are the node's addresses, the primary one first.
	NodeIPs []string
	// Allocatable bounds containers without limits in resource fields.
	Allocatable v1.ResourceList
	// MemoryCapacity of the node in bytes, for OOM scores.
	MemoryCapacity int64

	// Env is the environment of the one container that a configuration is made
	// for, if it is known already; nil has it made.
	Env []EnvVar

	// PodIPs are the sandbox's addresses; empty while there is no sandbox.
	PodIPs []string

	nameService

	// Services is for service variables: those of the pod's namespace and
	// "kubernetes" of the default namespace. Others are ignored.
	Services []*v1.Service
	// objects holds the ConfigMaps and Secrets that environments refer to.
	Objects objects

	files

	// RootDir is the agent's data directory; LogsDir that of pod logs.
	RootDir, LogsDir string
	// CgroupParent is the pod's cgroup as the runtime wants it named.
	CgroupParent string

	Node     NodeSettings
	Features RuntimeFeatures
	// UserNamespace is set for pods with hostUsers false.
	UserNamespace *UserNamespace
	exclusive
	// TargetID is the runtime id of the container whose processes a debug
	// container sees, by debug container name.
	TargetID map[string]string
}

// nameService is what the pod's resolv.conf and hosts file are made from.
type nameService struct {
	ClusterDNS    []string
	ClusterDomain string
	// HostResolver is the node's resolver; NoHostResolver says none is configured.
	HostResolver   network.Resolver
	NoHostResolver bool
	// HostHosts is the content of the node's hosts file, for host network pods.
	HostHosts string
}

// files is what containers see of a disk.
type files struct {
	// Images by container name.
	Images map[string]Image
	// Volumes by name, as mounted.
	Volumes map[string]Volume
	// SubPaths holds, per container and index of its volumeMount, the prepared
	// path of a mount with a subPath.
	SubPaths map[string]map[int]string
	// EnvFiles holds the content of files that fileKeyRef reads, by volume
	// name and path.
	EnvFiles map[EnvFile]string
}

// exclusive is what the node allocated to single containers.
type exclusive struct {
	// Devices are handed to containers by device plugins and drivers.
	Devices map[string]DeviceGrant
	// CPUSet pins containers to CPUs and memory nodes, by container name.
	CPUSet map[string]CPUSet
}

// EnvFile names a file in a volume.
type EnvFile struct {
	Volume, Path string
}

// CPUSet are the CPUs and memory nodes of a container in list form ("0-1,4").
// Exclusive says that no one else runs there, so that no quota applies.
type CPUSet struct {
	CPUs, Mems string
	Exclusive  bool
}

// Image is what the runtime knows of a container's image.
type Image struct {
	// Ref is what the runtime is asked to run (an image id or digest).
	Ref string
	// UID is the numeric user of the image, nil when it has none or a name.
	UID *int64
	// Username is the image's user when it is not numeric.
	Username string
}

// DeviceGrant is what device plugins and drivers add to a container.
type DeviceGrant struct {
	Devices     []Device
	Mounts      []Mount
	Envs        map[string]string
	Annotations map[string]string
	CDI         []string
}

// Device is a host device given to a container.
type Device struct {
	HostPath, ContainerPath, Permissions string
}

// Mount is a host path given to a container by a device plugin.
type Mount struct {
	HostPath, ContainerPath string
	ReadOnly                bool
}

// NodeSettings are the node's configuration as far as it shapes containers.
type NodeSettings struct {
	// CgroupVersion is 1 or 2.
	CgroupVersion int
	// CPUQuota enforces CPU limits; CPUPeriodMicros is 0 for the default.
	CPUQuota        bool
	CPUPeriodMicros int64
	// SeccompDefault gives containers without a profile the runtime's default.
	SeccompDefault bool
	// DropCapabilities are taken from containers that do not ask for them, and
	// are not privileged; in upper case, without CAP_.
	DropCapabilities []string
	// SingleProcessOOMKill kills only the offending process on v2.
	SingleProcessOOMKill bool
	// ThrottleFactor is where, between its request and its limit, a container
	// that uses much memory is slowed down on v2; 0 is nowhere. PodMemory is
	// what the node has for pods in bytes, PageSize the kernel's.
	ThrottleFactor      float64
	PodMemory, PageSize int64
	// ReserveMemory protects requests of memory from reclaim on v2.
	ReserveMemory bool
	// HugepageSizes are the page sizes of the host in kernel names.
	HugepageSizes []string
	// SwapLimited gives burstable pods a share of the node's swap
	// (LimitedSwap); SwapCapacity is the node's swap in bytes.
	SwapLimited  bool
	SwapCapacity int64
	// NoSwapController says that the kernel cannot limit swap on v2
	// (memory.swap.max is missing); nothing is written there then.
	NoSwapController bool
	// AllowedUnsafeSysctls as configured, patterns may end in "*".
	AllowedUnsafeSysctls []string
	// ThermalThrottlePaths are the per-CPU thermal_throttle directories of this
	// host, hidden from containers: reading them leaks the neighbours' load.
	ThermalThrottlePaths []string
	// AppArmor says that the host enforces it.
	AppArmor bool
	// Kernel is the kernel version {major, minor}, for sysctls that are safe
	// from some version on.
	Kernel [2]int
}

// RuntimeFeatures is what the pod's runtime handler can do.
type RuntimeFeatures struct {
	RecursiveReadOnly        bool
	UserNamespaces           bool
	SupplementalGroupsPolicy bool
	MountOptions             bool
}

// UserNamespace maps ids of the pod to a range of the host's.
type UserNamespace struct {
	UIDs, GIDs []IDMapping
}

// IDMapping is one range of a user namespace.
type IDMapping struct {
	HostID, ContainerID, Length uint32
}

// ConfigError is a container that cannot be configured. Its Reason is the
// waiting reason of the container.
type ConfigError struct {
	Reason string
	Err    error
}

// ReasonCreateConfig is the waiting reason of all configuration errors.
const ReasonCreateConfig = "CreateContainerConfigError"

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

func configErrorf(format string, args ...any) error {
	return &ConfigError{Reason: ReasonCreateConfig, Err: fmt.Errorf(format, args...)}
}

// AdmissionError is a pod that this node must reject. Reason becomes the pod's
// status reason.
type AdmissionError struct {
	Reason, Message string
}

func (e *AdmissionError) Error() string { return e.Message }
