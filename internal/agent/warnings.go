package agent

import (
	v1 "k8s.io/api/core/v1"
)

// machineFacts are what a node's owner should be told about once.
type machineFacts struct {
	cgroupVersion int
	swapBytes     int64
	// noSwapTmpfs: file systems in memory can be kept out of swap.
	noSwapTmpfs bool
}

// warnings are the events of a start, by reason. Pure.
func (f machineFacts) warnings() [][2]string {
	var out [][2]string
	if f.swapBytes > 0 && !f.noSwapTmpfs {
		out = append(out, [2]string{"PossibleMemoryBackedVolumesOnDisk",
			"this kernel's tmpfs has no option noswap: what pods keep in memory alone (Secrets, emptyDir volumes of medium Memory) may be written to swap; use Linux 6.4 or later, or encrypted swap"})
	}
	if f.cgroupVersion == 1 {
		out = append(out, [2]string{"CgroupV1", "this machine has cgroup v1, which Kubernetes only maintains: move it to cgroup v2"})
	}
	return out
}

func (a *Agent) warnOf(f machineFacts) {
	for _, w := range f.warnings() {
		a.nodeEvent(v1.EventTypeWarning, w[0], w[1])
	}
}
