package resource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func req(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = apiresource.MustParse(pairs[i+1])
	}
	return out
}

func podOf(uid string, list ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID(uid)}}
	for i, r := range list {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i), Resources: r})
	}
	return p
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		milli  int64
		shares uint64
		weight uint64
		quota  int64
	}{
		{0, 2, 1, 0}, {1, 2, 1, 1000}, {10, 10, 1, 1000}, {100, 102, 4, 10000}, {1000, 1024, 39, 100000},
		{256000, 262144, 10000, 25600000}, {1 << 50, 262144, 10000, 1 << 50 * 100}, {1 << 62, 262144, 10000, 0},
	} {
		if got := CPUShares(c.milli); got != c.shares {
			t.Errorf("shares of %d: %d, want %d", c.milli, got, c.shares)
		}
		if got := cpuWeight(c.shares); got != c.weight {
			t.Errorf("weight of %d: %d, want %d", c.shares, got, c.weight)
		}
		if got := CPUQuota(c.milli, 100000); got != c.quota && c.milli < 1<<50 {
			t.Errorf("quota of %d: %d, want %d", c.milli, got, c.quota)
		}
		if got := CPUQuota(c.milli, 100000); got < 0 {
			t.Errorf("quota of %d overflowed to %d", c.milli, got)
		}
	}
	for name, want := range map[v1.ResourceName]string{"hugepages-2Mi": "2MB", "hugepages-1Gi": "1GB", "hugepages-64Ki": "64KB", "cpu": "",
		"hugepages-x": ""} {
		if got, ok := HugepageSize(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q %v", name, got, ok)
		}
	}
}

func TestQOS(t *testing.T) {
	whole := v1.ResourceRequirements{Requests: req("cpu", "1", "memory", "1Gi"), Limits: req("cpu", "1", "memory", "1Gi")}
	level := podOf("x", v1.ResourceRequirements{})
	level.Spec.Resources = &whole
	withInit := podOf("x", whole)
	withInit.Spec.InitContainers = []v1.Container{{}}
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		want v1.PodQOSClass
	}{
		{"nothing", podOf("x", v1.ResourceRequirements{}), v1.PodQOSBestEffort},
		{"zero", podOf("x", v1.ResourceRequirements{Requests: req("cpu", "0")}), v1.PodQOSBestEffort},
		{"storage only", podOf("x", v1.ResourceRequirements{Requests: req("ephemeral-storage", "1Gi")}), v1.PodQOSBestEffort},
		{"request", podOf("x", v1.ResourceRequirements{Requests: req("cpu", "1")}), v1.PodQOSBurstable},
		{"whole", podOf("x", whole), v1.PodQOSGuaranteed},
		{"limits only", podOf("x", v1.ResourceRequirements{Limits: whole.Limits}), v1.PodQOSGuaranteed},
		{"one of two", podOf("x", whole, v1.ResourceRequirements{}), v1.PodQOSBurstable},
		{"init without", withInit, v1.PodQOSBurstable},
		{"pod level", level, v1.PodQOSGuaranteed},
		{"less than limit", podOf("x", v1.ResourceRequirements{Requests: req("cpu", "500m", "memory", "1Gi"), Limits: whole.Limits}),
			v1.PodQOSBurstable},
	} {
		if got := QOS(c.pod); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestPodLimits(t *testing.T) {
	opts := PodOptions{CPUQuota: true, HugepageSizes: []string{"2MB", "1GB"}, PidsLimit: 100}
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		want string
	}{
		{"best effort", podOf("x", v1.ResourceRequirements{}),
			"cpu.shares=2 pids.max=100 hugetlb.1GB.limit_in_bytes=0 hugetlb.2MB.limit_in_bytes=0"},
		{
			"guaranteed", podOf("x", v1.ResourceRequirements{Limits: req("cpu", "2", "memory", "1Mi"), Requests: req("cpu", "2", "memory",
				"1Mi", "hugepages-2Mi", "4Mi")}),
			"cpu.shares=2048 cpu.cfs_period_us=100000 cpu.cfs_quota_us=200000 memory.limit_in_bytes=1048576 pids.max=100 " +
				"hugetlb.1GB.limit_in_bytes=0 hugetlb.2MB.limit_in_bytes=4194304",
		},
		{
			"one container without limits", podOf("x", v1.ResourceRequirements{Limits: req("cpu", "1", "memory", "1Mi"),
				Requests: req("cpu", "1")}, v1.ResourceRequirements{Requests: req("cpu", "500m")}),
			"cpu.shares=1536 pids.max=100 hugetlb.1GB.limit_in_bytes=0 hugetlb.2MB.limit_in_bytes=0",
		},
	} {
		var got []string
		for _, s := range settings(1, PodLimits(c.pod, opts)) {
			got = append(got, s.file+"="+s.value)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, text, c.want)
		}
	}
	var got []string
	for _, s := range settings(2, Limits{CPUShares: 1024, CPUQuota: Unlimited, MemoryLimit: Unlimited, PidsLimit: 7,
		Hugepages: map[string]int64{"2MB": 5}, Unified: map[string]string{"memory.high": "9"}}) {
		got = append(got, s.controller+":"+s.file+"="+s.value)
	}
	want := "cpu:cpu.weight=39 cpu:cpu.max=max 100000 memory:memory.max=max pids:pids.max=7 hugetlb:hugetlb.2MB.max=5 " +
		"hugetlb:hugetlb.2MB.rsvd.max=5 memory:memory.high=9"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("v2:\n got %s\nwant %s", text, want)
	}
}

func TestNames(t *testing.T) {
	const uid = "1234-ab-cd"
	for _, c := range []struct {
		driver Driver
		root   string
		qos    v1.PodQOSClass
		want   string
	}{
		{Cgroupfs, "", v1.PodQOSGuaranteed, "/kubepods/pod1234-ab-cd"},
		{Cgroupfs, "/a/b", v1.PodQOSBurstable, "/a/b/kubepods/burstable/pod1234-ab-cd"},
		{Systemd, "", v1.PodQOSGuaranteed, "/kubepods.slice/kubepods-pod1234_ab_cd.slice"},
		{Systemd, "/", v1.PodQOSBestEffort, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_ab_cd.slice"},
		{Systemd, "/berth-1", v1.PodQOSGuaranteed, "/berth_1.slice/berth_1-kubepods.slice/berth_1-kubepods-pod1234_ab_cd.slice"},
		{Systemd, "/berth.slice", v1.PodQOSBurstable,
			"/berth.slice/berth-kubepods.slice/berth-kubepods-burstable.slice/berth-kubepods-burstable-pod1234_ab_cd.slice"},
	} {
		n, err := newNames(c.driver, c.root)
		if err != nil {
			t.Fatal(err)
		}
		got := n.pod(uid, c.qos)
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.driver, c.qos, got, c.want)
		}
		if back, ok := n.podUID(filepath.Base(got)); !ok || back != uid {
			t.Errorf("%s reads back as %q", got, back)
		}
	}
	if _, err := newNames("other", ""); err == nil {
		t.Error("an unknown driver was accepted")
	}
	if _, err := newNames(Cgroupfs, "/a/../b"); err == nil {
		t.Error("a root with .. was accepted")
	}
}

func TestHierarchyChoice(t *testing.T) {
	m := func(fstype, at, opts string) *mountinfo.Info {
		return &mountinfo.Info{FSType: fstype, Mountpoint: at, VFSOptions: opts}
	}
	with := func(s string) func(string) string { return func(string) string { return s } }
	h, err := pickHierarchy([]*mountinfo.Info{m("cgroup2", "/u", "rw")}, with("cpuset cpu memory pids\n"))
	if err != nil || h.Version() != 2 || h.Unified != "/u" {
		t.Errorf("unified: %+v %v", h, err)
	}
	hybrid := []*mountinfo.Info{m("cgroup", "/c", "rw,cpu,cpuacct"), m("cgroup", "/m", "rw,memory"), m("cgroup", "/s", "rw,name=systemd"),
		m("cgroup2", "/u", "rw")}
	h, err = pickHierarchy(hybrid, with("\n"))
	if err != nil || h.Version() != 1 || h.V1["cpu"] != "/c" || !slices.Equal(h.Others, []string{"/s", "/u"}) {
		t.Errorf("hybrid: %+v %v", h, err)
	}
	if _, err = pickHierarchy(hybrid[2:], with("")); err == nil {
		t.Error("a host without controllers was accepted")
	}
}

// v2 on a plain directory: what is written where, and that only changes are.
func TestV2TreeOnAPlainDirectory(t *testing.T) {
	dir := t.TempDir()
	controllers := filepath.Join(dir, "cgroup.controllers")
	if err := os.WriteFile(controllers, []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Driver: Cgroupfs, PerQOS: true, Hierarchy: Hierarchy{Unified: dir}, Pod: PodOptions{CPUQuota: true},
		Pods: Limits{MemoryLimit: 1 << 30, CPUShares: 2048}})
	if err != nil {
		t.Fatal(err)
	}
	c.create = true
	if err := c.EnsureRoot(); err != nil {
		t.Fatal(err)
	}
	burst := podOf("b", v1.ResourceRequirements{Requests: req("cpu", "1", "memory", "1Mi"), Limits: req("cpu", "2", "memory", "2Mi")})
	parent, err := c.EnsurePod(burst)
	if err != nil || parent != "/kubepods/burstable/podb" {
		t.Fatalf("%q, %v", parent, err)
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control":               "+pids",
		"kubepods/memory.max":                  "1073741824",
		"kubepods/besteffort/cpu.weight":       "1",
		"kubepods/burstable/cpu.weight":        "39",
		"kubepods/burstable/podb/cpu.max":      "200000 100000",
		"kubepods/burstable/podb/memory.max":   "2097152",
		"kubepods/burstable/podb/cpu.weight":   "39",
		"kubepods/cgroup.subtree_control":      "",
		"kubepods/burstable/podb/hugetlb.none": "",
	} {
		b, _ := os.ReadFile(filepath.Join(dir, file))
		if string(b) != want {
			t.Errorf("%s holds %q, want %q", file, b, want)
		}
	}
	// An unchanged sum is not written again.
	weight := filepath.Join(dir, "kubepods/burstable/cpu.weight")
	if err := os.WriteFile(weight, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(burst); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(weight); string(b) != "untouched" {
		t.Error("the class was weighed although nothing changed")
	}
}

type fakeUnits struct{ calls []string }

func (f *fakeUnits) StartSlice(name string, props []property) error {
	f.calls = append(f.calls, fmt.Sprint("start ", name, " ", props))
	return nil
}

func (f *fakeUnits) SetProperties(name string, props []property) error {
	f.calls = append(f.calls, fmt.Sprint("set ", name, " ", props))
	return nil
}

func (f *fakeUnits) StopSlice(name string) error {
	f.calls = append(f.calls, "stop "+name)
	return nil
}

func TestSystemdSlices(t *testing.T) {
	dir, units := t.TempDir(), &fakeUnits{}
	c, err := New(Config{Driver: Systemd, PerQOS: true, Hierarchy: Hierarchy{Unified: dir}, Units: units,
		Pod: PodOptions{CPUQuota: true, ReserveMemory: true}})
	if err != nil {
		t.Fatal(err)
	}
	c.create = true
	if err := c.EnsureRoot(); err != nil {
		t.Fatal(err)
	}
	pod := podOf("u-1", v1.ResourceRequirements{Limits: req("cpu", "15m", "memory", "1Mi"), Requests: req("cpu", "15m", "memory", "1Mi")})
	if _, err := c.EnsurePod(pod); err != nil {
		t.Fatal(err)
	}
	// 15 ms of a second round up to 2 % of a CPU.
	want := "start kubepods-podu_1.slice [{CPUWeight 1} {CPUQuotaPerSecUSec 20000} {CPUQuotaPeriodUSec 100000} {MemoryMax 1048576} " +
		"{MemoryMin 1048576} {MemoryLow 0}]"
	if !slices.Contains(units.calls, want) {
		t.Errorf("got  %v\nwant %s", units.calls, want)
	}
	if _, err := New(Config{Driver: Systemd}); err == nil {
		t.Error("systemd without a connection was accepted")
	}
}

// realV1 finds the host's v1 hierarchies and a subtree of our own.
func realV1(t *testing.T) (*Cgroups, Hierarchy) {
	t.Helper()
	h, err := FindHierarchy()
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	if h.Version() != 1 {
		t.Skip("needs cgroup v1")
	}
	root := "/berth-test-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(uint64(rand.Uint32()), 36)
	if err := os.Mkdir(filepath.Join(h.V1["memory"], root), 0o755); err != nil {
		t.Skip("needs the right to make cgroups: ", err)
	}
	t.Cleanup(func() {
		for _, m := range append([]string{h.V1["cpu"], h.V1["memory"], h.V1["pids"]}, h.Others...) {
			if err := removeTree(context.Background(), filepath.Join(m, root)); err != nil {
				t.Error(err)
			}
		}
	})
	c, err := New(Config{Driver: Cgroupfs, Root: root, PerQOS: true, Hierarchy: h, Pod: PodOptions{CPUQuota: true, PidsLimit: 50},
		Pods: Limits{MemoryLimit: 1 << 30, CPUShares: 1024}})
	if err != nil {
		t.Fatal(err)
	}
	return c, h
}

func TestRealV1(t *testing.T) {
	c, h := realV1(t)
	if err := c.EnsureRoot(); err != nil {
		t.Fatal(err)
	}
	pod := podOf("real", v1.ResourceRequirements{Requests: req("cpu", "300m", "memory", "8Mi"), Limits: req("cpu", "500m", "memory",
		"16Mi")})
	for range 2 {
		if _, err := c.EnsurePod(pod); err != nil {
			t.Fatal(err)
		}
	}
	p := c.PodPath(pod)
	for _, w := range []struct{ controller, file, want string }{
		{"cpu", "cpu.shares", "307"}, {"cpu", "cpu.cfs_quota_us", "50000"}, {"memory", "memory.limit_in_bytes", "16777216"},
		{"pids", "pids.max", "50"},
	} {
		b, err := os.ReadFile(filepath.Join(h.V1[w.controller], p, w.file))
		if err != nil || strings.TrimSpace(string(b)) != w.want {
			t.Errorf("%s: %q %v, want %s", w.file, b, err, w.want)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(h.V1["cpu"], c.names.class(v1.PodQOSBurstable), "cpu.shares")); strings.TrimSpace(
		string(b)) != "307" {
		t.Errorf("the burstable class weighs %s", b)
	}

	// A process that the runtime lost in a child cgroup is killed.
	child := filepath.Join(h.V1["pids"], p, "lost")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	other := podOf("other", v1.ResourceRequirements{})
	if _, err := c.EnsurePod(other); err != nil {
		t.Fatal(err)
	}
	if err := c.Orphans(context.Background(), func(uid types.UID) bool { return uid == "other" }); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the lost process ended by itself")
	}
	for _, m := range c.mounts() {
		if _, err := os.Stat(filepath.Join(m, p)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", filepath.Join(m, p), err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.V1["cpu"], c.PodPath(other))); err != nil {
		t.Errorf("a pod that is kept lost its cgroup: %v", err)
	}
	if err := c.RemovePod("other"); err != nil {
		t.Fatal(err)
	}
	if err := c.RemovePod("other"); err != nil {
		t.Errorf("removing twice: %v", err)
	}
}
