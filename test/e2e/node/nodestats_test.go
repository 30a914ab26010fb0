package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// restarting ends once, then stays: containers that were started again must be
// measured like others. It writes to its layer, its volume and its log.
const restarting = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: box
    image: berth.dev/toolbox:1
    command: [sh, -c, "echo some bytes | tee /outside; echo hello >> /volume/file; if [ $(cat /volume/file | wc -l) = 1 ] || [ ! -f ` +
	`/volume/again ]; then touch /volume/again; exit 0; fi; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; wget -qO- ` +
	`http://127.0.0.1:1; while true; do nslookup kubernetes.default; sleep 1; done"]
    resources: {limits: {memory: 80M}}
    volumeMounts: [{name: volume, mountPath: /volume}]
  volumes: [{name: volume, emptyDir: {}}]
---`

// TestNodeStatistics checks what upstream's node suites check of an agent's
// figures: every field that they want is there and within their bounds.
func TestNodeStatistics(t *testing.T) {
	c := kit.NewCluster(t, agentFlags(t, "volumeStatsAggPeriod: 2s\n")...)
	c.Up()
	c.Apply(fmt.Sprintf(restarting, "stats-0") + fmt.Sprintf(restarting, "stats-1") + kit.ToolboxPod("crashed", "exit 139", ""))
	for _, name := range []string{"stats-0", "stats-1"} {
		c.Eventually(name+" runs a second time", func() (bool, string) {
			p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
			if err != nil || len(p.Status.ContainerStatuses) != 1 {
				return false, fmt.Sprint(err)
			}
			s := p.Status.ContainerStatuses[0]
			return s.RestartCount == 1 && s.State.Running != nil, kit.Describe(p)
		})
	}
	t.Run("summary", func(t *testing.T) { testSummaryFields(t, c) })
	t.Run("cadvisor", func(t *testing.T) { testCAdvisorFamilies(t, c) })
	t.Run("resource", func(t *testing.T) { testResourceFamilies(t, c) })
	t.Run("terminated", func(t *testing.T) {
		c.Eventually("the exit code is counted", func() (bool, string) {
			out := c.NodeProxy("metrics")
			return strings.Contains(out, `kubelet_terminated_containers_total{container_type="container",exit_code="139"`), ""
		})
	})
	t.Run("lease", func(t *testing.T) { testLeaseFields(t, c) })
}

// bounds collects what is not as it should be.
type bounds struct{ wrong []string }

func (b *bounds) value(what string, got *uint64, low, high uint64) {
	switch {
	case got == nil:
		b.wrong = append(b.wrong, what+" is missing")
	case *got < low || *got > high:
		b.wrong = append(b.wrong, fmt.Sprintf("%s is %d, want %d to %d", what, *got, low, high))
	}
}

func (b *bounds) recent(what string, at metav1.Time) {
	if age := time.Since(at.Time); age > time.Minute || age < -3*time.Minute {
		b.wrong = append(b.wrong, fmt.Sprintf("%s is of %v", what, at.Time))
	}
}

func (b *bounds) cpu(what string, s *statsapi.CPUStats, lowRate, low, high uint64) {
	if s == nil {
		b.wrong = append(b.wrong, what+" has no cpu")
		return
	}
	b.recent(what+".cpu", s.Time)
	b.value(what+".cpu.usageNanoCores", s.UsageNanoCores, lowRate, 2e9)
	b.value(what+".cpu.usageCoreNanoSeconds", s.UsageCoreNanoSeconds, low, high)
}

func (b *bounds) memory(what string, s *statsapi.MemoryStats, low, high uint64, limited bool) {
	if s == nil {
		b.wrong = append(b.wrong, what+" has no memory")
		return
	}
	b.recent(what+".memory", s.Time)
	if limited {
		b.value(what+".memory.availableBytes", s.AvailableBytes, 1000, high)
	} else if s.AvailableBytes != nil {
		b.wrong = append(b.wrong, what+".memory.availableBytes is there without a limit")
	}
	b.value(what+".memory.usageBytes", s.UsageBytes, low, high)
	b.value(what+".memory.workingSetBytes", s.WorkingSetBytes, low, high)
	b.value(what+".memory.rssBytes", s.RSSBytes, 1000, high)
	b.value(what+".memory.pageFaults", s.PageFaults, 0, 1e15) // since the machine's start
	b.value(what+".memory.majorPageFaults", s.MajorPageFaults, 0, 1e15)
}

func (b *bounds) fs(what string, s *statsapi.FsStats, low, high uint64) {
	if s == nil {
		b.wrong = append(b.wrong, what+" is missing")
		return
	}
	b.recent(what, s.Time)
	b.value(what+".availableBytes", s.AvailableBytes, 100e6, 10e12)
	b.value(what+".capacityBytes", s.CapacityBytes, 100e6, 10e12)
	b.value(what+".usedBytes", s.UsedBytes, low, high)
	b.value(what+".inodes", s.Inodes, 0, 1e10)
	b.value(what+".inodesFree", s.InodesFree, 0, 1e10)
	b.value(what+".inodesUsed", s.InodesUsed, 0, 1e10)
}

func testSummaryFields(t *testing.T, c *kit.Cluster) {
	node, err := c.Client.CoreV1().Nodes().Get(context.Background(), c.NodeName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	total := uint64(node.Status.Capacity.Memory().Value())
	c.Eventually("every field of the summary is there and within bounds", func() (bool, string) {
		var s statsapi.Summary
		if err := json.Unmarshal([]byte(c.NodeProxy("stats/summary")), &s); err != nil {
			return false, err.Error()
		}
		b := &bounds{}
		b.node(&s.Node, node.Name, total)
		for _, name := range []string{"stats-0", "stats-1"} {
			at := slices.IndexFunc(s.Pods, func(p statsapi.PodStats) bool {
				return p.PodRef.Name == name &&
					p.PodRef.Namespace == "default"
			})
			if at < 0 {
				b.wrong = append(b.wrong, "no pod "+name)
				continue
			}
			b.pod(&s.Pods[at])
		}
		return len(b.wrong) == 0, strings.Join(b.wrong, "\n")
	})
}

func (b *bounds) node(n *statsapi.NodeStats, name string, total uint64) {
	if n.NodeName != name || n.StartTime.IsZero() {
		b.wrong = append(b.wrong, fmt.Sprintf("node %q started %v", n.NodeName, n.StartTime))
	}
	b.cpu("node", n.CPU, 100e3, 1e9, 1e15)
	b.memory("node", n.Memory, 10e6, total, true)
	b.fs("node.fs", n.Fs, 1000, 10e12)
	if n.Runtime == nil || n.Network == nil || n.Network.Interfaces == nil || n.Rlimit == nil || n.Rlimit.MaxPID == nil ||
		n.Rlimit.NumOfRunningProcesses == nil {
		b.wrong = append(b.wrong, "node lacks runtime, network or rlimit")
		return
	}
	b.recent("node.rlimit", n.Rlimit.Time)
	b.fs("node.runtime.imageFs", n.Runtime.ImageFs, 1000, 10e12)
	b.fs("node.runtime.containerFs", n.Runtime.ContainerFs, 0, 10e12)
	at := slices.IndexFunc(n.SystemContainers, func(s statsapi.ContainerStats) bool { return s.Name == "pods" })
	if at < 0 {
		b.wrong = append(b.wrong, "no system container pods")
		return
	}
	pods := &n.SystemContainers[at]
	b.cpu("pods", pods.CPU, 0, 10e6, 1e15)
	b.memory("pods", pods.Memory, 10e3, total, true)
	if pods.Rootfs != nil || pods.Logs != nil {
		b.wrong = append(b.wrong, "a system container has files")
	}
}

func (b *bounds) pod(p *statsapi.PodStats) {
	const limit = 80e6
	name := p.PodRef.Name
	b.cpu(name, p.CPU, 10000, 10e6, 1e11)
	b.memory(name, p.Memory, 10e3, limit, true)
	b.fs(name+".ephemeral-storage", p.EphemeralStorage, 1000, 21e6)
	if p.Network == nil || p.Network.Name != "eth0" || p.Network.Interfaces == nil {
		b.wrong = append(b.wrong, name+" has no network")
	} else {
		b.recent(name+".network", p.Network.Time)
		b.value(name+".network.rxBytes", p.Network.RxBytes, 10, 10e6)
		b.value(name+".network.txBytes", p.Network.TxBytes, 10, 10e6)
		b.value(name+".network.rxErrors", p.Network.RxErrors, 0, 1000)
		b.value(name+".network.txErrors", p.Network.TxErrors, 0, 1000)
	}
	if p.ProcessStats == nil {
		b.wrong = append(b.wrong, name+" has no processes")
	} else {
		b.value(name+".process_count", p.ProcessStats.ProcessCount, 1, 1e6)
	}
	if len(p.VolumeStats) != 1 || p.VolumeStats[0].Name != "volume" || p.VolumeStats[0].PVCRef != nil {
		b.wrong = append(b.wrong, fmt.Sprintf("%s has volumes %+v", name, p.VolumeStats))
	} else {
		b.fs(name+".volume", &p.VolumeStats[0].FsStats, 1000, 1e6)
	}
	if len(p.Containers) != 1 || p.Containers[0].Name != "box" {
		b.wrong = append(b.wrong, fmt.Sprintf("%s has containers %+v", name, p.Containers))
		return
	}
	box := &p.Containers[0]
	if age := time.Since(box.StartTime.Time); age < 0 || age > time.Hour {
		b.wrong = append(b.wrong, fmt.Sprintf("%s started %v ago", name, age))
	}
	b.cpu(name+".box", box.CPU, 10000, 10e6, 1e11)
	b.memory(name+".box", box.Memory, 10e3, limit, true)
	b.fs(name+".box.rootfs", box.Rootfs, 1000, 10e6)
	b.fs(name+".box.logs", box.Logs, 1, 10e6)
}

// cadvisorFamilies are those that must be there for a container, with the
// least and the most that upstream's suite takes.
var cadvisorFamilies = map[string][2]float64{
	"container_cpu_system_seconds_total": {0, 100}, "container_cpu_usage_seconds_total": {0, 100}, "container_cpu_user_seconds_total": {0,
		100},
	"container_file_descriptors": {0, 100}, "container_sockets": {0, 10}, "container_processes": {0, 10}, "container_threads": {0, 20},
	"container_threads_max":  {0, 5e6},
	"container_ulimits_soft": {0, 1073741816}, "container_fs_reads_bytes_total": {0, 1e8}, "container_fs_reads_total": {0, 1e4},
	"container_fs_usage_bytes":        {0, 1e6},
	"container_fs_writes_bytes_total": {0, 1e6}, "container_fs_writes_total": {0, 200}, "container_memory_cache": {0, 80e6},
	"container_memory_failcnt":        {0, 0},
	"container_memory_failures_total": {0, 1e6}, "container_memory_mapped_file": {0, 80e6}, "container_memory_max_usage_bytes": {0, 80e6},
	"container_memory_rss":  {10e3, 80e6},
	"container_memory_swap": {0, 0}, "container_memory_usage_bytes": {10e3, 80e6}, "container_memory_working_set_bytes": {10e3, 80e6},
	"container_oom_events_total": {0, 0},
	"container_spec_cpu_period":  {100000, 100000}, "container_spec_cpu_shares": {2, 2}, "container_spec_memory_limit_bytes": {79953920,
		79998976},
	"container_spec_memory_reservation_limit_bytes": {0, 0}, "container_spec_memory_swap_limit_bytes": {0, 80e6},
	"container_last_seen": {1e9, 1e10}, "container_start_time_seconds": {1e9, 1e10},
}

func testCAdvisorFamilies(t *testing.T, c *kit.Cluster) {
	c.Eventually("every family is there for the containers and within bounds", func() (bool, string) {
		samples := samplesOf(c.NodeProxy("metrics/cadvisor"))
		var wrong []string
		for family, bounds := range cadvisorFamilies {
			for _, pod := range []string{"stats-0", "stats-1"} {
				wrong = append(wrong, within(samples[family], family, `container="box"`, `pod="`+pod+`"`, bounds)...)
			}
		}
		for _, family := range []string{"receive_bytes_total", "receive_packets_total", "transmit_bytes_total", "transmit_packets_total"} {
			wrong = append(wrong, within(samples["container_network_"+family], family, `interface="eth0"`, `pod="stats-0"`,
				[2]float64{1, 10e6})...)
		}
		return len(wrong) == 0, strings.Join(wrong, "\n")
	})
}

func testResourceFamilies(t *testing.T, c *kit.Cluster) {
	c.Eventually("/metrics/resource is within bounds", func() (bool, string) {
		samples := samplesOf(c.NodeProxy("metrics/resource"))
		wrong := within(samples["node_cpu_usage_seconds_total"], "node cpu", "", "", [2]float64{1, 1e6})
		wrong = append(wrong, within(samples["node_memory_working_set_bytes"], "node memory", "", "", [2]float64{10e6, 1e14})...)
		wrong = append(wrong, within(samples["resource_scrape_error"], "errors", "", "", [2]float64{0, 0})...)
		for _, pod := range []string{"stats-0", "stats-1"} {
			of := `pod="` + pod + `"`
			wrong = append(wrong, within(samples["container_cpu_usage_seconds_total"], "container cpu", `container="box"`, of,
				[2]float64{0, 100})...)
			wrong = append(wrong, within(samples["container_memory_working_set_bytes"], "container memory", `container="box"`, of,
				[2]float64{10e3, 80e6})...)
			wrong = append(wrong, within(samples["container_start_time_seconds"], "container start", `container="box"`, of,
				[2]float64{float64(time.Now().Add(-time.Hour).Unix()), float64(time.Now().Unix())})...)
			wrong = append(wrong, within(samples["pod_cpu_usage_seconds_total"], "pod cpu", "", of, [2]float64{0, 100})...)
			wrong = append(wrong, within(samples["pod_memory_working_set_bytes"], "pod memory", "", of, [2]float64{10e3, 80e6})...)
		}
		return len(wrong) == 0, strings.Join(wrong, "\n")
	})
}

// samplesOf are the lines of a Prometheus text by metric.
func samplesOf(text string) map[string][]string {
	samples := map[string][]string{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			name := line[:strings.IndexAny(line+"{", "{ ")]
			samples[name] = append(samples[name], strings.TrimSpace(line))
		}
	}
	return samples
}

// within tells what is wrong with the samples that have both texts: none, or
// one outside of the bounds.
func within(lines []string, what, first, second string, bounds [2]float64) (wrong []string) {
	found := false
	for _, line := range lines {
		if !strings.Contains(line, first) || !strings.Contains(line, second) {
			continue
		}
		found = true
		fields := strings.Fields(line[strings.LastIndex(line, "}")+1:])
		if !strings.Contains(line, "}") {
			fields = fields[1:]
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || value < bounds[0] || value > bounds[1] {
			wrong = append(wrong, fmt.Sprintf("%s: want %v to %v", line, bounds[0], bounds[1]))
		}
	}
	if !found {
		wrong = append(wrong, fmt.Sprintf("no %s with %s %s", what, first, second))
	}
	return wrong
}

func testLeaseFields(t *testing.T, c *kit.Cluster) {
	list, err := c.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	lease := &list.Items[0]
	owners := lease.OwnerReferences
	if len(owners) != 1 || owners[0].Kind != "Node" || owners[0].APIVersion != "v1" || lease.Spec.HolderIdentity == nil ||
		*lease.Spec.HolderIdentity != c.NodeName() ||
		lease.Spec.LeaseDurationSeconds == nil || lease.Spec.RenewTime == nil {
		t.Errorf("the lease is %+v", lease)
	}
}
