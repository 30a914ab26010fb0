package start

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Those that give back come before those that take, so that the sum is never
// larger than both before and after.
func TestShrinkFirst(t *testing.T) {
	has := func(memory, quota int64) *runtimeapi.LinuxContainerResources {
		return &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: memory, CpuQuota: quota}
	}
	list := []resizing{
		{name: "grows", has: has(10, 10), want: has(20, 10)},
		{name: "bounded no more", has: has(10, 10), want: has(0, 10)},
		{name: "more cpu", has: has(10, 10), want: has(10, 20)},
		{name: "less cpu", has: has(10, 20), want: has(10, 10)},
		{name: "bounded now", has: nil, want: has(10, 10)},
		{name: "shrinks", has: has(20, 10), want: has(10, 10)},
	}
	slices.SortStableFunc(list, shrinkFirst)
	var got []string
	for _, r := range list {
		got = append(got, r.name)
	}
	want := []string{"bounded now", "shrinks", "less cpu", "more cpu", "grows", "bounded no more"}
	if !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
}
