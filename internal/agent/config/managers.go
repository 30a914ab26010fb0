package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Values of enforceNodeAllocatable.
const (
	EnforcePods               = "pods"
	EnforceSystem             = "system-reserved"
	EnforceKube               = "kube-reserved"
	EnforceSystemCompressible = "system-reserved-compressible"
	EnforceKubeCompressible   = "kube-reserved-compressible"
	EnforceNone               = "none"
)

// Values of memorySwap.swapBehavior.
const (
	NoSwap      = "NoSwap"
	LimitedSwap = "LimitedSwap"
)

var enforceable = []string{EnforcePods, EnforceSystem, EnforceKube, EnforceSystemCompressible, EnforceKubeCompressible, EnforceNone}

func validateEnforced(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	has := func(name string) bool { return slices.Contains(cfg.EnforceNodeAllocatable, name) }
	for _, value := range cfg.EnforceNodeAllocatable {
		p.check(!slices.Contains(enforceable, value), "enforceNodeAllocatable has %q: allowed are %s", value,
			strings.Join(enforceable, ", "))
	}
	p.check(has(EnforceNone) && len(cfg.EnforceNodeAllocatable) > 1, "enforceNodeAllocatable has none beside others")
	p.check(has(EnforcePods) && !*cfg.CgroupsPerQOS, "enforceNodeAllocatable with pods needs cgroupsPerQOS")
	for _, group := range []struct{ whole, cpu, field, cgroup string }{
		{EnforceSystem, EnforceSystemCompressible, "systemReservedCgroup", cfg.SystemReservedCgroup},
		{EnforceKube, EnforceKubeCompressible, "kubeReservedCgroup", cfg.KubeReservedCgroup},
	} {
		p.check(has(group.whole) && has(group.cpu), "enforceNodeAllocatable has both %s and %s", group.whole, group.cpu)
		p.check((has(group.whole) || has(group.cpu)) && group.cgroup == "", "enforceNodeAllocatable with %s needs %s", group.whole,
			group.field)
	}
}

func validateManagers(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	p.check(!slices.Contains([]string{"none", "static"}, cfg.CPUManagerPolicy), "cpuManagerPolicy is %q: allowed are none and static",
		cfg.CPUManagerPolicy)
	p.check(cfg.CPUManagerReconcilePeriod.Duration <= 0, "cpuManagerReconcilePeriod is %v: must be positive",
		cfg.CPUManagerReconcilePeriod.Duration)
	p.check(cfg.CPUManagerPolicy == "none" && len(cfg.CPUManagerPolicyOptions) > 0, "cpuManagerPolicyOptions need cpuManagerPolicy static")
	options, err := cpus.ParseOptions(cfg.CPUManagerPolicyOptions)
	if err == nil {
		err = options.CheckTopology(topology.Policy(cfg.TopologyManagerPolicy))
	}
	p.failed(err)
	p.check(!slices.Contains([]string{kubeletv1beta1.NoneMemoryManagerPolicy, kubeletv1beta1.StaticMemoryManagerPolicy},
		cfg.MemoryManagerPolicy),
		"memoryManagerPolicy is %q: allowed are None and Static", cfg.MemoryManagerPolicy)
	p.check(!slices.Contains(topology.Policies, cfg.TopologyManagerPolicy), "topologyManagerPolicy is %q: allowed are %s",
		cfg.TopologyManagerPolicy, strings.Join(topology.Policies, ", "))
	p.check(!slices.Contains([]string{"container", "pod"}, cfg.TopologyManagerScope),
		"topologyManagerScope is %q: allowed are container and pod", cfg.TopologyManagerScope)
	_, err = topology.ParseOptions(cfg.TopologyManagerPolicyOptions)
	p.failed(err)
	if cfg.ReservedSystemCPUs != "" {
		_, err := cpuset.Parse(cfg.ReservedSystemCPUs)
		p.check(err != nil, "reservedSystemCPUs is %q: must be a list of processors such as 0-1,4", cfg.ReservedSystemCPUs)
		p.check(cfg.SystemReservedCgroup != "" || cfg.KubeReservedCgroup != "",
			"reservedSystemCPUs excludes systemReservedCgroup and kubeReservedCgroup")
	}
	validateReservedMemory(p, cfg)
	p.check(!slices.Contains([]string{"", NoSwap, LimitedSwap}, cfg.MemorySwap.SwapBehavior),
		"memorySwap.swapBehavior is %q: allowed are %s and %s", cfg.MemorySwap.SwapBehavior, NoSwap, LimitedSwap)
}

func validateReservedMemory(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	p.check(len(cfg.ReservedMemory) > 0 && cfg.MemoryManagerPolicy != kubeletv1beta1.StaticMemoryManagerPolicy,
		"reservedMemory needs memoryManagerPolicy Static")
	seen := map[int32]bool{}
	for i, r := range cfg.ReservedMemory {
		p.check(r.NumaNode < 0 || seen[r.NumaNode], "reservedMemory[%d].numaNode is %d: must be a node named once", i, r.NumaNode)
		seen[r.NumaNode] = true
		p.check(len(r.Limits) == 0, "reservedMemory[%d].limits is empty", i)
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			q := r.Limits[name]
			p.check(name != v1.ResourceMemory && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix),
				"reservedMemory[%d].limits[%s]: allowed are memory and hugepages-<size>", i, name)
			p.check(q.Sign() <= 0, "reservedMemory[%d].limits[%s] is %s: must be positive", i, name, q.String())
		}
	}
}

// failed notes an error that says it all.
func (p *problems) failed(err error) {
	if err != nil {
		*p = append(*p, fmt.Sprint(err))
	}
}
