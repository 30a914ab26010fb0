package host

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParseMounts reads mountinfo as kernels write it: optional fields before
// the separator, controllers and options mixed behind it.
func TestParseMounts(t *testing.T) {
	const v1 = "30 25 0:26 / /c rw,nosuid shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct\n"
	for _, c := range []struct {
		name, mounts, controllers string
		mode                      Cgroups
	}{
		{"nothing", "", "", CgroupV1},
		{"other filesystems", "22 1 8:1 / / rw - ext4 /dev/sda1 rw,cpu\n", "", CgroupV1},
		{"two on one hierarchy", v1, "cpu cpuacct", CgroupV1},
		{"mounted twice", v1 + v1, "cpu cpuacct", CgroupV1},
		{"named hierarchies are no controllers", "31 25 0:27 / /s rw - cgroup systemd rw,xattr,name=systemd\n", "", CgroupV1},
		{"options are no controllers", "31 25 0:27 / /m ro - cgroup cgroup ro,memory,release_agent=/x\n", "memory", CgroupV1},
		{"a unified mount beside", v1 + "33 25 0:29 / /u rw - cgroup2 cgroup2 rw\n", "cpu cpuacct", CgroupHybrid},
		{"half a line", "31 25 0:27 / /m ro - cgroup cgroup\n31 25 0:27 /\n", "", CgroupV1},
	} {
		mode, controllers, err := parseMounts(strings.NewReader(c.mounts))
		if err != nil || mode != c.mode || strings.Join(controllers, " ") != c.controllers {
			t.Errorf("%s: %s, %q, %v", c.name, mode, controllers, err)
		}
	}
	if _, _, err := parseMounts(strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
		t.Error("a line without end is read")
	}
}

// TestCapability reads one bit of the effective set, and says what is missing.
func TestCapability(t *testing.T) {
	for _, c := range []struct {
		status string
		has    bool
		fault  string
	}{
		{"Name:\tx\nCapInh:\t01ffffffff\nCapEff:\t0000000001000000\n", true, ""},
		{"CapInh:\t0000000001000000\nCapPrm:\t0000000001000000\nCapEff:\t0000000000000000\n", false, ""},
		{"CapEff:\t000001fffeffffff\n", false, ""},
		{"Name:\tx\n", false, "no CapEff line"},
		{"CapEff:\tmany\n", false, `"CapEff:\tmany"`},
	} {
		root := tree(t, map[string]string{"status": c.status})
		has, err := hasCapability(root+"/status", unix.CAP_SYS_RESOURCE)
		if has != c.has || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %v, %v", c.status, has, err)
		}
	}
	if _, err := hasCapability("/nowhere/status", 0); err == nil || !strings.Contains(err.Error(), "/nowhere/status") {
		t.Errorf("without /proc: %v", err)
	}
}

// TestNotes: `berth status` shows a limit of the host, and nothing on one
// without limits.
func TestNotes(t *testing.T) {
	for _, c := range []struct {
		facts Facts
		words []string
	}{
		{Facts{Cgroups: CgroupV2, LowersOOMScore: true}, nil},
		{Facts{Cgroups: CgroupHybrid, LowersOOMScore: true}, []string{"(hybrid)"}},
		{Facts{Cgroups: CgroupV1}, []string{"(v1)", "CAP_SYS_RESOURCE"}},
	} {
		notes := c.facts.Notes()
		if len(notes) != len(c.words) {
			t.Errorf("%+v: %q", c.facts, notes)
			continue
		}
		for i, w := range c.words {
			if !strings.Contains(notes[i], w) {
				t.Errorf("%+v: no %q in %q", c.facts, w, notes[i])
			}
		}
	}
}

// TestProbeNamesWhatItCannotRead: a host that hides a fact is no host without it.
func TestProbeNamesWhatItCannotRead(t *testing.T) {
	all := map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n", "proc/sys/kernel/random/boot_id": "b\n",
		"proc/self/status": "CapEff:\t0\n"}
	if f, err := Probe(tree(t, all)); err != nil || len(f.Missing()) != 0 || f.Hugetlb || f.LowersOOMScore {
		t.Fatalf("%+v, %v", f, err)
	}
	for missing, want := range map[string]string{"sys/fs/cgroup/cgroup.controllers": "reading mounts",
		"proc/sys/kernel/random/boot_id": "boot id", "proc/self/status": "capabilities"} {
		some := map[string]string{}
		for name, text := range all {
			if name != missing {
				some[name] = text
			}
		}
		if _, err := Probe(tree(t, some)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	if got := (Facts{Controllers: []string{"memory"}}).Missing(); !slices.Equal(got, []string{"cpu", "pids"}) {
		t.Errorf("missing %v", got)
	}
}
