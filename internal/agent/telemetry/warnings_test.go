package telemetry

import (
	"slices"
	"testing"
)

func TestWarningsOfAHost(t *testing.T) {
	for _, c := range []struct {
		facts Host
		want  []string
	}{
		{Host{CgroupVersion: 2}, nil},
		{Host{CgroupVersion: 1, NoSwapTmpfs: true, SwapBytes: 1}, []string{"CgroupV1"}},
		{Host{CgroupVersion: 2, NoSwapTmpfs: true, SwapBytes: 1}, nil},
		{Host{CgroupVersion: 2, SwapBytes: 1}, []string{"PossibleMemoryBackedVolumesOnDisk"}},
	} {
		var got []string
		for _, w := range c.facts.Warnings() {
			got = append(got, w[0])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.facts, got, c.want)
		}
	}
}
