package container

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestMemoryQuality follows the formula: the request, and a share of what lies
// between it and the limit, or the node's memory for pods; in whole pages.
func TestMemoryQuality(t *testing.T) {
	const mib = 1 << 20
	list := func(cpu, memory string) v1.ResourceList {
		out := v1.ResourceList{}
		if memory != "" {
			out[v1.ResourceMemory] = resource.MustParse(memory)
		}
		if cpu != "" {
			out[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		return out
	}
	for _, c := range []struct {
		name                 string
		cpu, request, limit  string
		change               func(*NodeSettings)
		high, min, low, none string
	}{
		{name: "burstable", request: "100Mi", limit: "200Mi", high: "199229440", min: "0", low: "104857600"},
		{name: "burstable without a limit", request: "100Mi", high: "976850944", min: "0", low: "104857600"},
		{name: "limit alone", limit: "200Mi", high: "188743680", min: "0", low: "0"},
		{name: "odd bytes", request: "100000001", limit: "200000001", high: "189997056", min: "0", low: "100000001"},
		{name: "request above what the node has", request: "2000Mi", high: "max", min: "0", low: "2097152000"},
		{name: "memory is bounded, processors are not", request: "100Mi", limit: "100Mi", high: "max", min: "0", low: "104857600"},
		{name: "guaranteed", cpu: "1", request: "100Mi", limit: "100Mi", high: "max", min: "104857600", low: "0"},
		{name: "best effort", high: "max", min: "0", low: "0"},
		{name: "no throttling", request: "100Mi", limit: "200Mi", change: func(n *NodeSettings) { n.ThrottleFactor = 0 }, min: "0",
			low: "104857600"},
		{name: "no reservation", request: "100Mi", limit: "200Mi", change: func(n *NodeSettings) { n.ReserveMemory = false },
			high: "199229440"},
		{name: "cgroup v1", request: "100Mi", limit: "200Mi", change: func(n *NodeSettings) { n.CgroupVersion = 1 }},
	} {
		node := NodeSettings{CgroupVersion: 2, ThrottleFactor: 0.9, ReserveMemory: true, PodMemory: 1024 * mib, PageSize: 4096}
		if c.change != nil {
			c.change(&node)
		}
		in := Input{MemoryCapacity: 2048 * mib, Node: node, Pod: &v1.Pod{Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list(c.cpu, c.request),
				Limits: list(c.cpu, c.limit)}}}}}}
		got := Resources(in, &in.Pod.Spec.Containers[0]).Unified
		if got["memory.high"] != c.high || got["memory.min"] != c.min || got["memory.low"] != c.low {
			t.Errorf("%s: high %q, min %q, low %q; want %q, %q, %q", c.name, got["memory.high"], got["memory.min"], got["memory.low"],
				c.high, c.min, c.low)
		}
	}
}
