package stats

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// files of one cgroup as Linux 6.8 shows them with version 2.
var unifiedFiles = map[string]string{
	"cpu.stat": "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\nnice_usec 0\ncore_sched.force_idle_usec " +
		"0\nnr_periods 40\nnr_throttled 4\nthrottled_usec 2500\nnr_bursts 0\nburst_usec 0\n",
	"memory.current":      "104857600\n",
	"memory.max":          "209715200\n",
	"memory.swap.current": "4096\n",
	"memory.swap.max":     "8192\n",
	"memory.stat": "anon 52428800\nfile 41943040\nkernel 1048576\nslab 524288\nfile_mapped 4096000\ninactive_anon 0\nactive_anon " +
		"52428800\ninactive_file 20971520\nactive_file 20971520\npgfault 1234\npgmajfault 5\n",
	"memory.events":   "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n",
	"memory.pressure": "some avg10=0.10 avg60=0.20 avg300=0.30 total=1000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500\n",
	"cpu.pressure":    "some avg10=1.50 avg60=0.00 avg300=0.00 total=7000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	"io.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	"io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=100 wbytes=0 rios=1 wios=0 dbytes=0 " +
		"dios=0\n",
	"pids.current": "7\n",
	"pids.max":     "100\n",
	"memory.peak":  "150000000\n",
	"memory.low":   "4096\n",
	"cpu.max":      "50000 100000\n",
	"cgroup.procs": "4242\n4243\n",
}

// the same usage as version 1 shows it, by hierarchy.
var legacyFiles = map[string]map[string]string{
	"cpu": {"cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "50000\n",
		"cpu.stat": "nr_periods 40\nnr_throttled 4\nthrottled_time 2500000\n"},
	"cpuacct": {"cpuacct.usage": "2000000000\n", "cpuacct.usage_user": "1500000000\n", "cpuacct.usage_sys": "500000000\n"},
	"memory": {
		"memory.usage_in_bytes": "104857600\n", "memory.limit_in_bytes": "209715200\n",
		"memory.max_usage_in_bytes": "150000000\n", "memory.failcnt": "3\n", "memory.soft_limit_in_bytes": "4096\n",
		"memory.stat": "cache 1\nrss 1\ntotal_cache 41943040\ntotal_rss 52428800\ntotal_mapped_file 4096000\ntotal_swap " +
			"4096\ntotal_pgfault 1234\ntotal_pgmajfault 5\ntotal_inactive_file 20971520\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"cgroup.procs":       "4242\n4243\n",
	},
	"pids": {"pids.current": "7\n", "pids.max": "100\n"},
	"blkio": {"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\n8:16 Read 100\nTotal 12388\n",
		"blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\n8:16 Read 1\nTotal 4\n"},
}

var procFiles = map[string]string{
	"proc/stat": "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\nbtime 1767322000\n",
	"proc/meminfo": "MemTotal:       4194304 kB\nMemFree:        1048576 kB\nInactive(file):  524288 kB\nAnonPages:       " +
		"262144 kB\nSwapTotal:            0 kB\nSwapFree:             0 kB\n",
	"proc/loadavg":                "0.10 0.20 0.30 2/345 6789\n",
	"proc/sys/kernel/pid_max":     "4194304\n",
	"proc/sys/kernel/threads-max": "100000\n",
	"proc/1/net/dev":              netDev,
	"proc/4242/net/dev":           netDev,
	"proc/4242/limits": "Limit                     Soft Limit           Hard Limit           Units     \nMax processes        " +
		"     unlimited            unlimited            processes \nMax open files            1024                 4096                 " +
		"files     \n",
}

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 1000000    2000    1    2    0     0          0         0   300000    1500    3    4    0     0       0          0
`

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// host lays out a host of the version with pods pods of two containers.
func host(t testing.TB, version, pods int) (root string, mounts Mounts, list []*v1.Pod) {
	t.Helper()
	root = t.TempDir()
	for path, text := range procFiles {
		write(t, filepath.Join(root, path), text)
	}
	for pid, open := range map[string][]string{"4242": {"/dev/null", "socket:[77]", "pipe:[5]"}, "4243": {"socket:[78]"}} {
		if err := os.MkdirAll(filepath.Join(root, "proc", pid, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		for i, target := range open {
			if err := os.Symlink(target, filepath.Join(root, "proc", pid, "fd", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	base := filepath.Join(root, "sys/fs/cgroup")
	cgroup := func(path string) {
		if version == 2 {
			for name, text := range unifiedFiles {
				write(t, filepath.Join(base, path, name), text)
			}
			return
		}
		for controller, files := range legacyFiles {
			for name, text := range files {
				write(t, filepath.Join(base, controller, path, name), text)
			}
		}
	}
	mounts = Mounts{Unified: base}
	if version == 1 {
		in := func(name string) string { return filepath.Join(base, name) }
		mounts = Mounts{CPU: in("cpu"), CPUAcct: in("cpuacct"), Memory: in("memory"), PIDs: in("pids"), BlkIO: in("blkio")}
	}
	cgroup("")
	cgroup("kubepods")
	for i := range pods {
		uid := fmt.Sprintf("uid-%d", i)
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: "default", UID: types.UID(uid),
				CreationTimestamp: metav1.NewTime(epoch.Add(-time.Hour))},
			Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}, {Name: "b"}}},
		}
		cgroup("kubepods/pod" + uid)
		for _, name := range []string{"a", "b"} {
			id := fmt.Sprintf("%064d%s", i, name)
			cgroup("kubepods/pod" + uid + "/" + id)
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: name, Image: "image-" + name,
				ContainerID: "containerd://" + id,
				State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(epoch.Add(-time.Hour))}}})
		}
		list = append(list, pod)
	}
	return root, mounts, list
}

// fakeCRI knows writable layers only.
type fakeCRI struct {
	dir string
	// lazy is a runtime that does not measure its image store.
	lazy bool
}

func (f fakeCRI) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return []*runtimeapi.Image{{Id: "a", Size: 1000}, {Id: "b", Size: 234}}, nil
}

func (f fakeCRI) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return []*runtimeapi.ContainerStats{{Attributes: &runtimeapi.ContainerAttributes{Id: fmt.Sprintf("%064da", 0)},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: 5000},
			InodesUsed: &runtimeapi.UInt64Value{Value: 5}}}}, nil
}

func (f fakeCRI) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	if f.lazy {
		return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{
			{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: f.dir}}}}, nil
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: f.dir}, UsedBytes: &runtimeapi.UInt64Value{Value: 77777},
		InodesUsed: &runtimeapi.UInt64Value{Value: 7}}}}, nil
}

func provider(t testing.TB, version, pods int, change func(*Config)) *Provider {
	t.Helper()
	root, mounts, list := host(t, version, pods)
	cfg := Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "n1", Pods: func() []*v1.Pod { return list },
		PodCgroup: func(pod *v1.Pod) string { return "/kubepods/pod" + string(pod.UID) }, PodsCgroup: "/kubepods",
		Reader: NewReader(mounts), Runtime: fakeCRI{dir: root}, Images: fakeCRI{dir: root}, RootDir: root,
		LogsDir: filepath.Join(root, "logs"), HostRoot: root,
		Now: func() time.Time { return epoch },
	}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBothVersionsReadTheSame(t *testing.T) {
	var got [3]Usage
	for version := 1; version <= 2; version++ {
		_, mounts, _ := host(t, version, 1)
		var err error
		if got[version], err = NewReader(mounts).Read("/kubepods/poduid-0", CPU|CPUDetail|Memory|Swap|Events|PIDs|IO|Limits); err != nil {
			t.Fatal(err)
		}
	}
	// Version 1 accounts for swap together with memory and shows no limit of it.
	got[1].SwapLimit = got[2].SwapLimit
	if !reflect.DeepEqual(got[1], got[2]) {
		t.Errorf("version 1 reads\n%+v, version 2\n%+v", got[1], got[2])
	}
	want := Usage{
		cpuUsage: cpuUsage{CPU: 2e9, CPUUser: 15e8, CPUSystem: 5e8, Periods: 40, ThrottledPeriods: 4, ThrottledNanos: 25e5,
			CPUPeriod: 100000, CPUQuota: 50000},
		memoryUsage: memoryUsage{Memory: 104857600, WorkingSet: 83886080, RSS: 52428800, Cache: 41943040, MappedFile: 4096000, Swap: 4096,
			MemoryLimit: 209715200, SwapLimit: 8192, PageFaults: 1234, MajorFaults: 5, OOMKills: 1,
			MemoryPeak: 150000000, LimitHits: 3, Reservation: 4096},
		PIDs: 7, PIDsLimit: 100,
		Devices:   []deviceIO{{Major: 8, ReadBytes: 4096, WriteBytes: 8192}, {Major: 8, Minor: 16, ReadBytes: 100}},
		ReadBytes: 4196, WriteBytes: 8192, Reads: 2, Writes: 2}
	if !reflect.DeepEqual(got[2], want) {
		t.Errorf("read\n%+v, want\n%+v", got[2], want)
	}
}

func TestMissingCgroupIsReported(t *testing.T) {
	_, mounts, _ := host(t, 2, 0)
	if _, err := NewReader(mounts).Read("/kubepods/none", Everything); err != ErrGone {
		t.Errorf("got %v", err)
	}
}

func TestSummary(t *testing.T) {
	for version := 1; version <= 2; version++ {
		p := provider(t, version, 1, nil)
		// Sizes of the file system under the test are no one's business.
		p.disk.facts = &diskFacts{at: epoch, root: fsUsage{capacity: 1000, available: 400, used: 600, inodes: 100, inodesFree: 90,
			inodesUsed: 10},
			image: &fsUsage{capacity: 2000, available: 1000, used: 700}, container: &fsUsage{capacity: 2000, available: 1000, used: 700},
			writable: map[string]DiskUse{fmt.Sprintf("%064da", 0): {5000, 5}},
			logs:     map[types.UID]map[string]DiskUse{"uid-0": {"a": {300, 3}}},
			volumes: map[types.UID][]volumeUsage{"uid-0": {{Volume: Volume{Name: "v", Claim: "claim"}, usage: fsUsage{capacity: 10, used: 4,
				available: 6}, at: epoch},
				{Volume: Volume{Name: "e", Shared: true}, usage: fsUsage{capacity: 1000, used: 44, inodesUsed: 2}, at: epoch}}}}
		summary, err := p.Summary(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.MarshalIndent(summary, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		// The machine's pressure comes from the real /proc on version 1.
		if version == 1 {
			summary.Node.CPU.PSI, summary.Node.Memory.PSI, summary.Node.IO = nil, nil, nil
			if text, err = json.MarshalIndent(summary, "", " "); err != nil {
				t.Fatal(err)
			}
		}
		golden.Check(t, fmt.Sprintf("testdata/summary-v%d.json", version), string(text))
	}
}

// Two pods that share a claim make one series of it; volumes without a claim
// make none.
func TestVolumeMetrics(t *testing.T) {
	p := provider(t, 2, 2, nil)
	claim := volumeUsage{Volume: Volume{Name: "v", Claim: "data"}, usage: fsUsage{capacity: 10, available: 6, used: 4, inodes: 9,
		inodesFree: 7, inodesUsed: 2}}
	p.disk.facts = &diskFacts{at: epoch, volumes: map[types.UID][]volumeUsage{
		"uid-0": {claim, {Volume: Volume{Name: "e", Shared: true}, usage: fsUsage{used: 44}}}, "uid-1": {claim},
	}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.VolumeMetrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if len(f.Metric) != 1 || f.Metric[0].GetLabel()[0].GetValue() != "default" || f.Metric[0].GetLabel()[1].GetValue() != "data" {
			t.Errorf("%s: %v", f.GetName(), f.Metric)
		}
		got[strings.TrimPrefix(f.GetName(), "kubelet_volume_stats_")] = f.Metric[0].GetGauge().GetValue()
	}
	want := map[string]float64{"capacity_bytes": 10, "available_bytes": 6, "used_bytes": 4, "inodes": 9, "inodes_free": 7, "inodes_used": 2}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLogMetrics(t *testing.T) {
	p := provider(t, 2, 2, nil)
	p.disk.facts = &diskFacts{at: epoch, logs: map[types.UID]map[string]DiskUse{"uid-1": {"a": {Bytes: 300, Inodes: 3}},
		"gone": {"a": {Bytes: 1}}}}
	want := `# HELP kubelet_container_log_filesystem_used_bytes Bytes used by the container's logs on the filesystem.
# TYPE kubelet_container_log_filesystem_used_bytes gauge
kubelet_container_log_filesystem_used_bytes{container="a",namespace="default",pod="pod-1",uid="uid-1"} 300
`
	if err := testutil.CollectAndCompare(p.LogMetrics(), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// A volume whose driver knows its size is not measured through its file system.
func TestDriverKnowsTheSize(t *testing.T) {
	p := provider(t, 2, 1, func(c *Config) {
		c.Volumes = func(types.UID) []Volume {
			return []Volume{{Name: "v", Path: "/nowhere", Measure: func(context.Context) (VolumeSize,
				error) {
				return VolumeSize{Capacity: 10, Used: 4}, nil
			}}}
		}
	})
	usage, ok := p.disk.readVolume(t.Context(), p.cfg.Volumes("uid-0")[0])
	if !ok || usage.capacity != 10 || usage.used != 4 {
		t.Errorf("%+v, %v", usage, ok)
	}
}

func TestBriefSummaryHasNothingElse(t *testing.T) {
	p := provider(t, 2, 1, nil)
	summary, err := p.Summary(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	pod := summary.Pods[0]
	if summary.Node.CPU == nil || summary.Node.Fs != nil || pod.Network != nil || pod.EphemeralStorage != nil ||
		pod.Containers[0].Memory == nil || pod.Containers[0].Rootfs != nil {
		t.Errorf("brief summary is %+v", summary)
	}
}

func TestMetricsText(t *testing.T) {
	p := provider(t, 2, 1, nil)
	p.disk.facts = &diskFacts{at: epoch, writable: map[string]DiskUse{fmt.Sprintf("%064da", 0): {5000, 5}}}
	for name, write := range map[string]func(context.Context, io.Writer) error{"resource.txt": p.WriteResource,
		"cadvisor.txt": p.WriteCAdvisor} {
		var out bytes.Buffer
		if err := write(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join("testdata", name), out.String())
		parser := expfmt.NewTextParser(model.LegacyValidation)
		if _, err := parser.TextToMetricFamilies(&out); err != nil {
			t.Errorf("%s is no Prometheus text: %v", name, err)
		}
	}
}

func TestRateIsMadeFromTwoQuestions(t *testing.T) {
	p := provider(t, 2, 0, nil)
	if rate := p.rate("/x", 2e9, epoch.Add(-10*time.Second), epoch); rate != 2e8 {
		t.Errorf("first question: %d, want the average since birth", rate)
	}
	if rate := p.rate("/x", 3e9, epoch, epoch.Add(2*time.Second)); rate != 5e8 {
		t.Errorf("second question: %d", rate)
	}
	if rate := p.rate("/x", 4e9, epoch, epoch.Add(2100*time.Millisecond)); rate != 5e8 {
		t.Errorf("a question too soon: %d, want the last rate", rate)
	}
	for range 5 {
		p.forgetRates()
	}
	if len(p.rates) != 0 {
		t.Errorf("%d samples are kept of cgroups that nobody asks for", len(p.rates))
	}
}

func TestDiskIsReadOncePerAge(t *testing.T) {
	calls := 0
	now := epoch
	p := provider(t, 2, 1, func(cfg *Config) {
		cfg.Now = func() time.Time { return now }
		cfg.Volumes = func(types.UID) []Volume {
			calls++
			return []Volume{{Name: "v", Path: cfg.RootDir, Shared: true}}
		}
	})
	write(t, filepath.Join(p.cfg.LogsDir, "default_pod-0_uid-0/a/0.log"), strings.Repeat("x", 300))
	for range 10 {
		if _, err := p.Summary(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	facts := p.disk.get(t.Context())
	if calls != 1 || facts.logs["uid-0"]["a"].Bytes != 300 || facts.image.used != 77777 || facts.volumes["uid-0"][0].usage.used == 0 {
		t.Errorf("%d readings, facts %+v", calls, facts)
	}
}

// TestThisHost reads the real cgroups, whatever their version.
func TestThisHost(t *testing.T) {
	mounts, err := FindMounts()
	if err != nil {
		t.Skipf("no cgroups on this host: %v", err)
	}
	usage, err := NewReader(mounts).Read("/", CPU|Memory|PIDs)
	if err != nil {
		t.Fatal(err)
	}
	if usage.CPU == 0 || usage.Memory == 0 || usage.WorkingSet > usage.Memory {
		t.Errorf("usage is %+v", usage)
	}
}

func TestOwnCgroup(t *testing.T) {
	v1 := []byte("8:pids:/x\n4:memory,hugetlb:/system.slice/berth.service\n1:name=systemd:/y\n0::/z\n")
	for _, c := range []struct {
		text    []byte
		unified bool
		want    string
	}{
		{v1, false, "/system.slice/berth.service"}, {v1, true, "/z"}, {[]byte("0::/\n"), true, ""}, {[]byte("0::/\n"), false, ""},
	} {
		if got := cgroupOf(c.text, c.unified); got != c.want {
			t.Errorf("version 2 %v: %q, want %q", c.unified, got, c.want)
		}
	}
}
