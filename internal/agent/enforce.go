package agent

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/resource"
)

// podsLimits bounds all pods together by what the machine has less what is
// reserved for the system: node allocatable enforcement. Eviction thresholds
// are not taken off; they are for acting before this limit strikes.
func (a *Agent) podsLimits(machine *node.Machine) resource.Limits {
	if !a.enforces(config.EnforcePods) {
		return resource.Limits{}
	}
	reserved := a.Config.Node.Reserved
	reserved.EvictionHard = nil
	left := node.Allocatable(node.Capacity(machine, nil, a.Config.Node.Limits, nil), reserved, nil)
	out := resource.Limits{CPUShares: resource.CPUShares(left.Cpu().MilliValue()), MemoryLimit: left.Memory().Value(), PidsLimit: machine.MaxPIDs, Hugepages: map[string]int64{}}
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

func (a *Agent) enforces(name string) bool {
	return slices.Contains(a.Config.Kubelet.EnforceNodeAllocatable, name)
}

// enforce makes the cgroups of pods and bounds those of the system, as
// configured.
func (a *Agent) enforce() error {
	k, reserved := a.Config.Kubelet, a.Config.Node.Reserved
	if err := a.Cgroups.EnsureRoot(); err != nil {
		return a.notEnforced("Failed to update Node Allocatable Limits", err)
	}
	if a.enforces(config.EnforcePods) {
		a.nodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
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
		if !a.enforces(group.value) {
			continue
		}
		if err := a.Cgroups.Enforce(group.cgroup, resource.ReservedLimits(group.amount, group.compressible)); err != nil {
			return a.notEnforced(fmt.Sprintf("Failed to enforce %s Reserved Cgroup Limits on %q", group.kind, group.cgroup), err)
		}
		a.nodeEvent(v1.EventTypeNormal, "NodeAllocatableEnforced", fmt.Sprintf("Updated limits on %s reserved cgroup %s", strings.ToLower(group.kind), group.cgroup))
	}
	return nil
}

func (a *Agent) notEnforced(what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	a.nodeEvent(v1.EventTypeWarning, "FailedNodeAllocatableEnforcement", err.Error())
	return err
}

// nodeEvent reports an event about the Node.
func (a *Agent) nodeEvent(kind, reason, message string) {
	name := a.Config.NodeName
	a.Events.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}, kind, reason, message)
}
