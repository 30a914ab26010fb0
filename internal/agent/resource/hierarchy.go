package resource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Hierarchy says where the kernel's cgroup trees are mounted.
type Hierarchy struct {
	// Unified is the mount point of cgroup v2 when v2 holds the controllers,
	// else empty.
	Unified string
	// V1 maps each v1 controller to its mount point. Controllers mounted
	// together share one.
	V1 map[string]string
	// Others are v1 mounts without a controller we write (named ones): the
	// runtime creates pod directories there, so they are cleaned too.
	Others []string
}

// Version is 1 or 2.
func (h Hierarchy) Version() int {
	if h.Unified != "" {
		return 2
	}
	return 1
}

// Has says whether a controller can be used here. A controller that the kernel
// knows but that is mounted nowhere cannot.
func (h Hierarchy) Has(controller string) bool {
	if h.Unified == "" {
		return h.V1[controller] != ""
	}
	b, err := os.ReadFile(filepath.Join(h.Unified, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(b)), controller)
}

// v1Controllers are the controllers whose files this package writes on v1.
var v1Controllers = []string{"cpu", "memory", "pids", "hugetlb"}

// v2Controllers are delegated to pods on v2 where the kernel offers them.
var v2Controllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// FindHierarchy reads the cgroup mounts of this mount namespace. On a hybrid
// host, v1 wins if it holds the cpu and memory controllers.
func FindHierarchy() (Hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return Hierarchy{}, fmt.Errorf("reading cgroup mounts: %w", err)
	}
	return pickHierarchy(mounts, func(dir string) string {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		return string(b)
	})
}

func pickHierarchy(mounts []*mountinfo.Info, controllers func(dir string) string) (Hierarchy, error) {
	h := Hierarchy{V1: map[string]string{}}
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			if strings.Contains(" "+strings.TrimSpace(controllers(m.Mountpoint))+" ", " memory ") {
				h.Unified = m.Mountpoint
			} else {
				h.Others = append(h.Others, m.Mountpoint)
			}
			continue
		}
		known := false
		for _, o := range strings.Split(m.VFSOptions, ",") {
			if slices.Contains(v1Controllers, o) && h.V1[o] == "" {
				h.V1[o], known = m.Mountpoint, true
			}
		}
		if !known {
			h.Others = append(h.Others, m.Mountpoint)
		}
	}
	if h.V1["cpu"] != "" && h.V1["memory"] != "" {
		h.Unified = ""
		return h, nil
	}
	if h.Unified != "" {
		return h, nil
	}
	return h, errors.New("finding cgroups: neither cgroup v2 with its memory controller nor cgroup v1 cpu and memory are mounted; mount " +
		"cgroup2 on /sys/fs/cgroup or enable the controllers on the kernel command line")
}

// setting is one control file of a cgroup and the value it gets. Controller
// names the v1 hierarchy; it is ignored on v2.
type setting struct {
	controller, file, value string
}

// settings spells limits for one cgroup version, in the order they are
// written. Pure.
func settings(version int, l Limits) []setting {
	if version == 2 {
		return settingsV2(l)
	}
	var out []setting
	add := func(controller, file, value string) { out = append(out, setting{controller, file, value}) }
	if l.CPUShares != 0 {
		add("cpu", "cpu.shares", strconv.FormatUint(l.CPUShares, 10))
	}
	if l.CPUPeriod != 0 {
		add("cpu", "cpu.cfs_period_us", strconv.FormatUint(l.CPUPeriod, 10))
	}
	if l.CPUQuota != 0 {
		add("cpu", "cpu.cfs_quota_us", strconv.FormatInt(l.CPUQuota, 10))
	}
	if l.MemoryLimit != 0 {
		add("memory", "memory.limit_in_bytes", strconv.FormatInt(l.MemoryLimit, 10))
	}
	if l.PidsLimit != 0 {
		add("pids", "pids.max", orMax(l.PidsLimit))
	}
	for _, size := range sortedKeys(l.Hugepages) {
		add("hugetlb", "hugetlb."+size+".limit_in_bytes", strconv.FormatInt(l.Hugepages[size], 10))
	}
	return out
}

func settingsV2(l Limits) []setting {
	var out []setting
	add := func(controller, file, value string) { out = append(out, setting{controller, file, value}) }
	if l.CPUShares != 0 {
		add("cpu", "cpu.weight", strconv.FormatUint(cpuWeight(l.CPUShares), 10))
	}
	if l.CPUQuota != 0 {
		period := l.CPUPeriod
		if period == 0 {
			period = DefaultCPUPeriodMicros
		}
		add("cpu", "cpu.max", orMax(l.CPUQuota)+" "+strconv.FormatUint(period, 10))
	}
	if l.MemoryLimit != 0 {
		add("memory", "memory.max", orMax(l.MemoryLimit))
	}
	if l.PidsLimit != 0 {
		add("pids", "pids.max", orMax(l.PidsLimit))
	}
	for _, size := range sortedKeys(l.Hugepages) {
		v := orMax(l.Hugepages[size])
		add("hugetlb", "hugetlb."+size+".max", v)
		// The reservation limit must match, or a process that only reserves
		// pages escapes the limit until it touches them.
		add("hugetlb", "hugetlb."+size+".rsvd.max", v)
	}
	for _, file := range sortedKeys(l.Unified) {
		controller, _, _ := strings.Cut(file, ".")
		add(controller, file, l.Unified[file])
	}
	return out
}

func orMax(v int64) string {
	if v == Unlimited {
		return "max"
	}
	return strconv.FormatInt(v, 10)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
