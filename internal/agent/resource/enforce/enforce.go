// Package enforce makes the node's cgroup tree as the configuration says and
// bounds in it all pods together and what is reserved for the system.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/resource"
)

// Config is what the tree follows from.
type Config struct {
	Kubelet *kubeletv1beta1.KubeletConfiguration
	Node    node.Settings
	Host    *node.HostInfo
	// Runtime knows how it names cgroups.
	Runtime interface {
		RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error)
	}
	// Exclusive tells which pods have CPUs of their own.
	Exclusive func(uid types.UID) bool
	// Event reports an event about the Node.
	Event func(kind, reason, message string)
	Log   *slog.Logger
}

// Open makes the tree; what it holds open is closed when ctx ends.
func Open(ctx context.Context, cfg Config) (*resource.Cgroups, resource.Hierarchy, error) {
	k := cfg.Kubelet
	hierarchy, err := resource.FindHierarchy()
	if err != nil {
		return nil, hierarchy, err
	}
	_, _, reserve := config.MemoryQoS(k)
	if err := cfg.check(hierarchy); err != nil {
		return nil, hierarchy, err
	}
	driver := cfg.driver(ctx)
	var units resource.Units
	if driver == resource.Systemd {
		s, err := resource.ConnectSystemd(ctx)
		if err != nil {
			return nil, hierarchy, err
		}
		context.AfterFunc(ctx, s.Close)
		units = s
	}
	options := resource.PodOptions{CPUQuota: k.CPUCFSQuota == nil || *k.CPUCFSQuota, HugepageSizes: HugepageSizes(cfg.Host),
		ReserveMemory: reserve}
	if d := k.CPUCFSQuotaPeriod; d != nil {
		options.CPUPeriodMicros = d.Duration.Microseconds()
	}
	if k.PodPidsLimit != nil {
		options.PidsLimit = *k.PodPidsLimit
	}
	tree, err := resource.New(resource.Config{
		Driver: driver, Root: k.CgroupRoot, PerQOS: k.CgroupsPerQOS == nil || *k.CgroupsPerQOS, Pod: options, Exclusive: cfg.Exclusive,
		Pods: PodsLimits(k, cfg.Node, cfg.Host), Hierarchy: hierarchy, Units: units, Log: cfg.Log,
	})
	if err != nil {
		return nil, hierarchy, err
	}
	return tree, hierarchy, cfg.bound(tree)
}

// check refuses what cgroup v1 cannot do.
func (cfg *Config) check(h resource.Hierarchy) error {
	if h.Version() != 1 {
		return nil
	}
	if cfg.Kubelet.MemorySwap.SwapBehavior == config.LimitedSwap {
		return fmt.Errorf("memorySwap.swapBehavior %s needs cgroup v2 and this machine has v1: use %s", config.LimitedSwap, config.NoSwap)
	}
	if quality, _, _ := config.MemoryQoS(cfg.Kubelet); quality {
		return errors.New("featureGates.MemoryQoS (memoryThrottlingFactor, memoryReservationPolicy) needs cgroup v2 and this machine has " +
			"v1: leave the gate out")
	}
	return nil
}

// driver is how cgroups are named: the runtime knows that better than a file.
func (cfg *Config) driver(ctx context.Context) resource.Driver {
	if rc, err := cfg.Runtime.RuntimeConfig(ctx); err == nil && rc.GetLinux() != nil {
		if rc.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
			return resource.Systemd
		}
		return resource.Cgroupfs
	}
	if d := cfg.Kubelet.CgroupDriver; d != "" {
		return resource.Driver(d)
	}
	return resource.Cgroupfs
}

// HugepageSizes are the names of the sizes of huge pages that a host has.
func HugepageSizes(m *node.HostInfo) (out []string) {
	for size := range m.HugePages {
		out = append(out, resource.HugepageName(size))
	}
	return out
}

// PodsLimits bounds all pods together by what the host has less what is
// reserved for the system: node allocatable enforcement. Eviction thresholds
// are not taken off; they are for acting before this limit strikes.
func PodsLimits(k *kubeletv1beta1.KubeletConfiguration, set node.Settings, host *node.HostInfo) resource.Limits {
	if !slices.Contains(k.EnforceNodeAllocatable, config.EnforcePods) {
		return resource.Limits{}
	}
	reserved := set.Reserved
	reserved.EvictionHard = nil
	left := node.Allocatable(node.Capacity(host, nil, set.Limits, nil), reserved, nil)
	out := resource.Limits{CPUShares: resource.CPUShares(left.Cpu().MilliValue()), MemoryLimit: left.Memory().Value(),
		PidsLimit: host.MaxPIDs,
		Hugepages: map[string]int64{}}
	for _, part := range []v1.ResourceList{reserved.System, reserved.Kube} {
		q := part[resource.PIDs]
		out.PidsLimit -= q.Value()
	}
	out.PidsLimit = max(out.PidsLimit, 0)
	for name, q := range left {
		if size, ok := resource.HugepageSize(name); ok {
			out.Hugepages[size] = q.Value()
		}
	}
	return out
}

// bound makes the cgroups of pods and bounds those of the system, as
// configured.
func (cfg *Config) bound(tree *resource.Cgroups) error {
	k, reserved := cfg.Kubelet, cfg.Node.Reserved
	enforces := func(name string) bool { return slices.Contains(k.EnforceNodeAllocatable, name) }
	if err := tree.EnsureRoot(); err != nil {
		return cfg.failed("Failed to update Node Allocatable Limits", err)
	}
	if enforces(config.EnforcePods) {
		cfg.Event(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	for _, group := range []struct {
		value, kind, cgroup string
		compressible        bool
		amount              v1.ResourceList
	}{
		{config.EnforceSystem, "System", k.SystemReservedCgroup, false, reserved.System},
		{config.EnforceSystemCompressible, "System", k.SystemReservedCgroup, true, reserved.System},
		{config.EnforceKube, "Kube", k.KubeReservedCgroup, false, reserved.Kube},
		{config.EnforceKubeCompressible, "Kube", k.KubeReservedCgroup, true, reserved.Kube},
	} {
		if !enforces(group.value) {
			continue
		}
		if err := tree.Enforce(group.cgroup, resource.ReservedLimits(group.amount, group.compressible)); err != nil {
			return cfg.failed(fmt.Sprintf("Failed to enforce %s Reserved Cgroup Limits on %q", group.kind, group.cgroup), err)
		}
		cfg.Event(v1.EventTypeNormal, "NodeAllocatableEnforced", fmt.Sprintf("Updated limits on %s reserved cgroup %s",
			strings.ToLower(group.kind), group.cgroup))
	}
	return nil
}

func (cfg *Config) failed(what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	cfg.Event(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", err.Error())
	return err
}
