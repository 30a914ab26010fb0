package resource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

func TestReservedCgroupsAreBounded(t *testing.T) {
	reserved := v1.ResourceList{"cpu": apiresource.MustParse("500m"), "memory": apiresource.MustParse("1Gi"),
		"pid": apiresource.MustParse("100"), "hugepages-2Mi": apiresource.MustParse("4Mi"),
		"ephemeral-storage": apiresource.MustParse("1Gi")}
	for _, c := range []struct {
		name         string
		version      int
		driver       Driver
		cgroup       string
		compressible bool
		want         string
	}{
		{"v1", 1, Cgroupfs, "/sys/kube", false,
			"cpu.shares=512 hugetlb.2MB.limit_in_bytes=4194304 memory.limit_in_bytes=1073741824 pids.max=100"},
		{"v2", 2, Cgroupfs, "sys/kube", false,
			"cpu.weight=20 hugetlb.2MB.max=4194304 hugetlb.2MB.rsvd.max=4194304 memory.max=1073741824 pids.max=100"},
		{"v2 cpu alone", 2, Cgroupfs, "/sys/kube", true, "cpu.weight=20"},
		{"v1 cpu alone", 1, Cgroupfs, "/sys/kube", true, "cpu.shares=512"},
		{"systemd", 2, Systemd, "/sys.slice/sys-kube.slice", true, "cpu.weight=20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, units := t.TempDir(), &fakeUnits{}
			h := Hierarchy{Unified: dir}
			if c.version == 1 {
				h = Hierarchy{V1: map[string]string{"cpu": dir, "memory": dir, "pids": dir, "hugetlb": dir}}
			}
			cg, err := New(Config{Driver: c.driver, Hierarchy: h, Units: units})
			if err != nil {
				t.Fatal(err)
			}
			cg.create = true
			l := ReservedLimits(reserved, c.compressible)
			if err := cg.Enforce(c.cgroup, l); err == nil || !strings.Contains(err.Error(), "make it before the agent starts") {
				t.Errorf("a cgroup that does not exist: %v", err)
			}
			path := filepath.Join(dir, "sys/kube")
			if c.driver == Systemd {
				path = filepath.Join(dir, "sys.slice/sys-kube.slice")
			}
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := cg.Enforce(c.cgroup, l); err != nil {
				t.Fatal(err)
			}
			files, err := os.ReadDir(path)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				b, err := os.ReadFile(filepath.Join(path, f.Name()))
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, f.Name()+"="+string(b))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			if c.driver == Systemd && (len(units.calls) != 1 || units.calls[0] != "set sys-kube.slice [{CPUWeight 20}]") {
				t.Errorf("systemd was asked to %v", units.calls)
			}
		})
	}
}

func TestSwapIsLeftAloneWhereTheKernelCannotBoundIt(t *testing.T) {
	dir := t.TempDir()
	c, err := New(Config{Driver: Cgroupfs, PerQOS: true, Hierarchy: Hierarchy{Unified: dir}})
	if err != nil {
		t.Fatal(err)
	}
	if c.SwapControlled() {
		t.Error("without memory.swap.max")
	}
	if err := os.MkdirAll(filepath.Join(dir, "kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubepods/memory.swap.max"), []byte("max"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !c.SwapControlled() {
		t.Error("with memory.swap.max")
	}
}

// TestPodsWithExclusiveCPUsHaveNoQuota: the quota would take back what
// exclusive CPUs give.
func TestPodsWithExclusiveCPUsHaveNoQuota(t *testing.T) {
	dir := t.TempDir()
	c, err := New(Config{Driver: Cgroupfs, PerQOS: true, Hierarchy: Hierarchy{Unified: dir}, Pod: PodOptions{CPUQuota: true},
		Exclusive: func(uid types.UID) bool { return uid == "own" }})
	if err != nil {
		t.Fatal(err)
	}
	c.create = true
	for uid, want := range map[types.UID]string{"own": "max 100000", "shared": "200000 100000"} {
		pod := podOf(string(uid), v1.ResourceRequirements{Limits: req("cpu", "2", "memory", "1Mi"), Requests: req("cpu", "2", "memory",
			"1Mi")})
		if _, err := c.EnsurePod(pod); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, c.PodPath(pod), "cpu.max")); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", uid, b, err)
		}
	}
}
