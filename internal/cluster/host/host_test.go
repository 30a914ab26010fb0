package host

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree writes a recorded host.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestProbe(t *testing.T) {
	v1 := "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	base := map[string]string{
		"proc/sys/kernel/random/boot_id": "abc\n",
		"proc/self/status":               "Name:\tx\nCapEff:\t000001ffffffffff\n",
	}
	with := func(extra map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range base {
			out[k] = v
		}
		for k, v := range extra {
			out[k] = v
		}
		return out
	}
	cases := []struct {
		name    string
		files   map[string]string
		cgroups Cgroups
		missing []string
		systemd bool
		lowers  bool
	}{
		{"v2 with systemd", with(map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
			"run/systemd/system/x": ""}), CgroupV2, nil, true, true},
		{"v2 without memory", with(map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu pids\n"}), CgroupV2, []string{"memory"},
			false, true},
		{"v1", with(map[string]string{"proc/self/mountinfo": v1}), CgroupV1, []string{"pids"}, false, true},
		{"hybrid, no CAP_SYS_RESOURCE", with(map[string]string{
			"proc/self/mountinfo": v1 +
				"32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 " +
				"cgroup2 rw\n",
			"proc/self/status": "CapEff:\t000001fffeffffff\n",
		}), CgroupHybrid, nil, false, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := Probe(tree(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if f.Cgroups != c.cgroups || !reflect.DeepEqual(f.Missing(), c.missing) || f.Systemd != c.systemd ||
				f.LowersOOMScore != c.lowers || f.BootID != "abc" {
				t.Fatalf("got %+v, missing %v", f, f.Missing())
			}
		})
	}
}

func TestInstanceNamesDiffer(t *testing.T) {
	a, b := Instance("/tmp/a"), Instance("/tmp/b")
	if a == b || Instance(DefaultDataDir) != "berth" || !strings.HasPrefix(a, "berth-") || len(a) != len("berth-")+8 {
		t.Fatal(a, b)
	}
}
