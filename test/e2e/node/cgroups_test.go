package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// limits are what a cgroup is bounded by. The weight is the kernel's: shares of
// 1024 for a CPU on v1, up to 10,000 on v2.
type limits struct{ weight, memory, pids int64 }

// weightOf is what a request of CPU time weighs.
func weightOf(milli int64) int64 {
	shares := milli * 1024 / 1000
	if kit.CgroupV2() {
		return 1 + (shares-2)*9999/262142
	}
	return shares
}

func readLimits(t *testing.T, path string) limits {
	t.Helper()
	read := func(controller, v1, v2 string) int64 {
		file := filepath.Join(kit.CgroupRoot, controller, path, v1)
		if kit.CgroupV2() {
			file = filepath.Join(kit.CgroupRoot, path, v2)
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
	if kit.CgroupV2() {
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
		dir := filepath.Join(kit.CgroupRoot, controller, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("making a cgroup: ", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	return name
}
