package agent

import (
	"slices"
	"testing"
)

func TestWarningsOfAMachine(t *testing.T) {
	for _, c := range []struct {
		facts machineFacts
		want  []string
	}{
		{machineFacts{cgroupVersion: 2}, nil},
		{machineFacts{cgroupVersion: 1, noSwapTmpfs: true, swapBytes: 1}, []string{"CgroupV1"}},
		{machineFacts{cgroupVersion: 2, noSwapTmpfs: true, swapBytes: 1}, nil},
		{machineFacts{cgroupVersion: 2, swapBytes: 1}, []string{"PossibleMemoryBackedVolumesOnDisk"}},
	} {
		var got []string
		for _, w := range c.facts.warnings() {
			got = append(got, w[0])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.facts, got, c.want)
		}
	}
}
