//go:build vm

package resource

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestUnified makes pods' cgroups in the real unified hierarchy, with either
// driver, and reads back what the kernel holds. It runs on the test machine
// (docs/vm.md), which has cgroup v2 and systemd.
func TestUnified(t *testing.T) {
	h, err := FindHierarchy()
	if err != nil || h.Version() != 2 {
		t.Fatalf("the machine has no unified hierarchy: %+v, %v", h, err)
	}
	units, err := ConnectSystemd(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer units.Close()
	for _, driver := range []Driver{Cgroupfs, Systemd} {
		t.Run(string(driver), func(t *testing.T) {
			root := fmt.Sprintf("/live-%d", os.Getpid())
			c, err := New(Config{Driver: driver, Root: root, PerQOS: true, Hierarchy: h, Units: units,
				Pod:  PodOptions{CPUQuota: true, PidsLimit: 50, HugepageSizes: []string{"2MB"}, ReserveMemory: true},
				Pods: Limits{MemoryLimit: 1 << 30, CPUShares: 1024, PidsLimit: 900}})
			if err != nil {
				t.Fatal(err)
			}
			top := filepath.Join(h.Unified, c.names.render())
			t.Cleanup(func() {
				if err := c.remove(context.Background(), c.names.render()); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(top); !os.IsNotExist(err) {
					t.Errorf("%s is still there: %v", top, err)
				}
			})
			if err := c.EnsureRoot(); err != nil {
				t.Fatal(err)
			}
			read := func(path, file, want string) {
				t.Helper()
				b, err := os.ReadFile(filepath.Join(h.Unified, path, file))
				if got := strings.TrimSpace(string(b)); err != nil || got != want {
					t.Errorf("%s of %s is %q, want %q, %v", file, path, got, want, err)
				}
			}
			// 1024 shares weigh 39 of systemd's and the kernel's 10,000.
			read(c.PodsPath(), "cpu.weight", fmt.Sprint(cpuWeight(1024)))
			read(c.PodsPath(), "memory.max", "1073741824")
			read(c.PodsPath(), "pids.max", "900")
			pod := podOf("real", v1.ResourceRequirements{Requests: req("cpu", "300m", "memory", "8Mi", "hugepages-2Mi", "4Mi"),
				Limits: req("cpu", "500m", "memory", "16Mi", "hugepages-2Mi", "4Mi")})
			safe := podOf("safe", v1.ResourceRequirements{Requests: req("cpu", "100m", "memory", "4Mi"),
				Limits: req("cpu", "100m", "memory", "4Mi")})
			check := func(quota, memory string) {
				t.Helper()
				read(c.PodPath(safe), "memory.min", "4194304")
				read(c.PodsPath(), "memory.min", "4194304")
				read(c.PodsPath(), "memory.low", "8388608")
				read(c.names.class(v1.PodQOSBurstable), "memory.low", "8388608")
				p := c.PodPath(pod)
				read(p, "memory.low", "8388608")
				read(p, "cpu.weight", fmt.Sprint(cpuWeight(CPUShares(300))))
				read(p, "cpu.max", quota+" 100000")
				read(p, "memory.max", memory)
				read(p, "pids.max", "50")
				read(p, "hugetlb.2MB.max", "4194304")
				read(c.names.class(v1.PodQOSBurstable), "cpu.weight", fmt.Sprint(cpuWeight(CPUShares(300))))
				read(c.names.class(v1.PodQOSBestEffort), "cpu.weight", "1")
			}
			for range 2 {
				for _, p := range []*v1.Pod{pod, safe} {
					if _, err := c.EnsurePod(p); err != nil {
						t.Fatal(err)
					}
				}
			}
			check("50000", "16777216")
			pod.Spec.Containers[0].Resources.Limits = req("cpu", "700m", "memory", "32Mi", "hugepages-2Mi", "4Mi")
			if err := c.Update(pod); err != nil {
				t.Fatal(err)
			}
			check("70000", "33554432")
			// Systemd writes its units' settings again whenever it reloads them.
			if driver == Systemd {
				if err := units.conn.ReloadContext(context.Background()); err != nil {
					t.Fatal(err)
				}
				check("70000", "33554432")
			}
			if !c.SwapControlled() {
				t.Error("the kernel is taken to be unable to bound swap")
			}
		})
	}
}
