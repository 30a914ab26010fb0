package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const cgroupRoot = "/sys/fs/cgroup"

// unified tells whether this machine has cgroup v2. Controllers of v1 are
// expected in their usual places.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// limits are what a cgroup is bounded by. The weight is the kernel's: shares of
// 1024 for a processor on v1, up to 10,000 on v2.
type limits struct{ weight, memory, pids int64 }

// weightOf is what a request of processor time weighs.
func weightOf(milli int64) int64 {
	shares := milli * 1024 / 1000
	if unified() {
		return 1 + (shares-2)*9999/262142
	}
	return shares
}

func readLimits(t *testing.T, path string) limits {
	t.Helper()
	read := func(controller, v1, v2 string) int64 {
		file := filepath.Join(cgroupRoot, controller, path, v1)
		if unified() {
			file = filepath.Join(cgroupRoot, path, v2)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		return n
	}
	return limits{weight: read("cpu", "cpu.shares", "cpu.weight"), memory: read("memory", "memory.limit_in_bytes", "memory.max"),
		pids: read("pids", "pids.max", "pids.max")}
}

// reservedCgroup makes a cgroup as a node's own processes have one, a slice
// where systemd keeps the tree, and returns its path.
func reservedCgroup(t *testing.T) string {
	t.Helper()
	if unified() {
		if _, err := os.Stat("/run/systemd/system"); err != nil {
			t.Skip("needs systemd on cgroup v2")
		}
		name := fmt.Sprintf("berthreserved%d", os.Getpid())
		if out, err := exec.Command("systemd-run", "--collect", "--unit", name, "--slice", name+".slice", "sleep",
			"infinity").CombinedOutput(); err != nil {
			t.Fatalf("making a slice: %v\n%s", err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("systemctl", "stop", name+".service", name+".slice").CombinedOutput(); err != nil {
				t.Errorf("stopping the slice: %v\n%s", err, out)
			}
		})
		return "/" + name + ".slice"
	}
	name := fmt.Sprintf("/berth-e2e-reserved-%d", os.Getpid())
	for _, controller := range []string{"cpu", "memory", "pids"} {
		dir := filepath.Join(cgroupRoot, controller, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("making a cgroup: ", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	return name
}

// podsCgroup is where this cluster's pods are, from a process of one of them.
func (c *cluster) podsCgroup() string {
	c.t.Helper()
	c.apply(simplePod("probe", ""))
	c.waitReady("default", "app=probe", 1)
	path := c.cgroupOf("probe")
	elements := strings.Split(path, "/")
	for i, e := range elements {
		if strings.Contains(e, "kubepods") {
			return strings.Join(elements[:i+1], "/")
		}
	}
	c.t.Fatalf("%s is not among the cgroups of pods", path)
	return ""
}

// cgroupOf is the cgroup of a pod's only container that memory is counted in.
func (c *cluster) cgroupOf(pod string) string {
	c.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.containerPIDs()[c.container(pod).id]))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		separator := ":memory:"
		if unified() {
			separator = "0::"
		}
		if _, path, ok := strings.Cut(strings.TrimSpace(line), separator); ok {
			return path
		}
	}
	c.t.Fatalf("no memory cgroup in %s", text)
	return ""
}

// oomKills is how often the kernel ended something in a cgroup; on v2 also
// below it.
func oomKills(t *testing.T, path string) int {
	t.Helper()
	file := filepath.Join(cgroupRoot, "memory", path, "memory.oom_control")
	if unified() {
		file = filepath.Join(cgroupRoot, path, "memory.events")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s does not tell of the OOM killer", file)
	return 0
}
