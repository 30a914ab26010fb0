package container

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestSwap: a share of the node's swap as large as the share of its memory, for
// those alone who asked for memory and may use more.
func TestSwap(t *testing.T) {
	const gib = 1 << 30
	list := func(memory string) v1.ResourceList {
		if memory == "" {
			return nil
		}
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}
	}
	high := int32(criticalMin)
	for _, c := range []struct {
		name           string
		request, limit string
		change         func(*Input)
		max            string
		limitBytes     int64
	}{
		{name: "burstable", request: "2Gi", limit: "4Gi", max: "1073741824", limitBytes: 5 * gib},
		{name: "no limit", request: "2Gi", max: "1073741824"},
		{name: "request is the limit", request: "2Gi", limit: "2Gi", max: "0", limitBytes: 2 * gib},
		{name: "best effort", max: "0"},
		{name: "critical", request: "2Gi", limit: "4Gi", change: func(in *Input) { in.Pod.Spec.Priority = &high }, max: "0",
			limitBytes: 4 * gib},
		{name: "NoSwap", request: "2Gi", limit: "4Gi", change: func(in *Input) { in.Node.SwapLimited = false }, max: "0",
			limitBytes: 4 * gib},
		{name: "no controller", request: "2Gi", limit: "4Gi", change: func(in *Input) { in.Node.NoSwapController = true }},
		{name: "cgroup v1", request: "2Gi", limit: "4Gi", change: func(in *Input) { in.Node.CgroupVersion = 1 }, limitBytes: 4 * gib},
	} {
		in := Input{MemoryCapacity: 16 * gib, Node: NodeSettings{CgroupVersion: 2, SwapLimited: true, SwapCapacity: 8 * gib},
			Pod: &v1.Pod{Spec: v1.PodSpec{
				Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list(c.request),
					Limits: list(c.limit)}}}}}}
		if c.change != nil {
			c.change(&in)
		}
		got := Resources(in, &in.Pod.Spec.Containers[0])
		if got.Unified[unifiedSwapMax] != c.max || got.MemorySwapLimitInBytes != c.limitBytes {
			t.Errorf("%s: memory.swap.max %q and limit %d, want %q and %d", c.name, got.Unified[unifiedSwapMax], got.MemorySwapLimitInBytes,
				c.max, c.limitBytes)
		}
	}
}
