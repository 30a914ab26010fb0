package telemetry

// Host is what a node's owner should hear about once.
type Host struct {
	CgroupVersion int
	SwapBytes     int64
	// NoSwapTmpfs: file systems in memory can be kept out of swap.
	NoSwapTmpfs bool
}

// Warnings are the events of a start, by reason. Pure.
func (f Host) Warnings() [][2]string {
	var out [][2]string
	if f.SwapBytes > 0 && !f.NoSwapTmpfs {
		out = append(out, [2]string{"PossibleMemoryBackedVolumesOnDisk",
			"this kernel's tmpfs has no option noswap: what pods keep in memory alone (Secrets, emptyDir volumes of medium Memory) may " +
				"be written to swap; use Linux 6.4 or later, or encrypted swap"})
	}
	if f.CgroupVersion == 1 {
		out = append(out, [2]string{"CgroupV1", "this machine has cgroup v1, which Kubernetes only maintains: move it to cgroup v2"})
	}
	return out
}
