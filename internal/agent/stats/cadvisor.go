package stats

import (
	"context"
	"io"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/agent/resource"
)

// row is one cgroup as the container_* metrics show it.
type row struct {
	container, id, image, name, namespace, pod string

	usage   Usage
	started time.Time
	seen    time.Time // when this was read
	network []netInterface
	labels  []byte        // all of the above as the text format has them, from rows on
	spec    *v1.Container // limits and requests; nil for none
	disk    *DiskUse      // writable layer; nil if unknown
	inside  *processFacts // nil for what is no container
}

// metric is one family: how to get its samples from a row.
type metric struct {
	name, kind, help string
	// value is the row's sample; ok is false for none.
	value func(*row) (value float64, ok bool)
	// each, instead of value, emits samples with further labels.
	each func(*row, func(value float64, labels ...string))
}

func always(value float64) (float64, bool) { return value, true }

// cadvisorMetrics are the families that dashboards and alerts ask for, under
// the names they know.
var cadvisorMetrics = []metric{
	{name: "container_cpu_usage_seconds_total", kind: "counter", help: "Cumulative cpu time consumed in seconds.",
		each: func(r *row, emit func(float64, ...string)) { emit(seconds(r.usage.CPU), "cpu", "total") }},
	{name: "container_cpu_user_seconds_total", kind: "counter", help: "Cumulative user cpu time consumed in seconds.",
		value: func(r *row) (float64, bool) { return always(seconds(r.usage.CPUUser)) }},
	{name: "container_cpu_system_seconds_total", kind: "counter", help: "Cumulative system cpu time consumed in seconds.",
		value: func(r *row) (float64, bool) { return always(seconds(r.usage.CPUSystem)) }},
	{name: "container_cpu_cfs_periods_total", kind: "counter", help: "Number of elapsed enforcement period intervals.",
		value: func(r *row) (float64, bool) { return float64(r.usage.Periods), r.usage.Periods > 0 }},
	{name: "container_cpu_cfs_throttled_periods_total", kind: "counter", help: "Number of throttled period intervals.",
		value: func(r *row) (float64, bool) { return float64(r.usage.ThrottledPeriods), r.usage.Periods > 0 }},
	{name: "container_cpu_cfs_throttled_seconds_total", kind: "counter", help: "Total time duration the container has been throttled.",
		value: func(r *row) (float64, bool) { return seconds(r.usage.ThrottledNanos), r.usage.Periods > 0 }},
	{name: "container_memory_usage_bytes", kind: "gauge",
		help:  "Current memory usage in bytes, including all memory regardless of when it was accessed",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.Memory)) }},
	{name: "container_memory_working_set_bytes", kind: "gauge", help: "Current working set in bytes.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.WorkingSet)) }},
	{name: "container_memory_rss", kind: "gauge", help: "Size of RSS in bytes.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.RSS)) }},
	{name: "container_memory_cache", kind: "gauge", help: "Number of bytes of page cache memory.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.Cache)) }},
	{name: "container_memory_mapped_file", kind: "gauge", help: "Size of memory mapped files in bytes.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.MappedFile)) }},
	{name: "container_memory_swap", kind: "gauge", help: "Container swap usage in bytes.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.Swap)) }},
	{name: "container_memory_failures_total", kind: "counter", help: "Cumulative count of memory allocation failures.",
		each: func(r *row, emit func(float64, ...string)) {
			emit(float64(r.usage.PageFaults), "failure_type", "pgfault", "scope", "hierarchy")
			emit(float64(r.usage.MajorFaults), "failure_type", "pgmajfault", "scope", "hierarchy")
		}},
	{name: "container_oom_events_total", kind: "counter", help: "Count of out of memory events observed for the container",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.OOMKills)) }},
	{name: "container_processes", kind: "gauge", help: "Number of processes running inside the container.",
		value: func(r *row) (float64, bool) {
			if r.inside == nil {
				return always(float64(r.usage.PIDs))
			}
			return always(float64(r.inside.processes))
		}},
	{name: "container_file_descriptors", kind: "gauge", help: "Number of open file descriptors for the container.",
		value: ofProcesses(func(f *processFacts) uint64 { return f.descriptors })},
	{name: "container_sockets", kind: "gauge", help: "Number of open sockets for the container.",
		value: ofProcesses(func(f *processFacts) uint64 { return f.sockets })},
	{name: "container_ulimits_soft", kind: "gauge",
		help: "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
		each: func(r *row, emit func(float64, ...string)) {
			if r.inside != nil && r.inside.processes > 0 {
				emit(r.inside.openFiles, "ulimit", "max_open_files")
			}
		}},
	{name: "container_threads_max", kind: "gauge",
		help:  "Maximum number of threads allowed inside the container, infinity if value is zero",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.PIDsLimit)) }},
	{name: "container_memory_failcnt", kind: "counter", help: "Number of memory usage hits limits",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.LimitHits)) }},
	{name: "container_memory_max_usage_bytes", kind: "gauge", help: "Maximum memory usage recorded in bytes",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.MemoryPeak)) }},
	{name: "container_blkio_device_usage_total", kind: "counter", help: "Blkio Device bytes usage",
		each: func(r *row, emit func(float64, ...string)) {
			for _, d := range r.usage.Devices {
				major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
				emit(float64(d.ReadBytes), "device", "", "major", major, "minor", minor, "operation", "Read")
				emit(float64(d.WriteBytes), "device", "", "major", major, "minor", minor, "operation", "Write")
			}
		}},
	{name: "container_spec_memory_reservation_limit_bytes", kind: "gauge", help: "Memory reservation limit for the container.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.Reservation)) }},
	{name: "container_threads", kind: "gauge", help: "Number of threads running inside the container",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.PIDs)) }},
	{name: "container_fs_reads_bytes_total", kind: "counter", help: "Cumulative count of bytes read",
		each: func(r *row, emit func(float64, ...string)) { emit(float64(r.usage.ReadBytes), "device", "") }},
	{name: "container_fs_writes_bytes_total", kind: "counter", help: "Cumulative count of bytes written",
		each: func(r *row, emit func(float64, ...string)) { emit(float64(r.usage.WriteBytes), "device", "") }},
	{name: "container_fs_reads_total", kind: "counter", help: "Cumulative count of reads completed",
		each: func(r *row, emit func(float64, ...string)) { emit(float64(r.usage.Reads), "device", "") }},
	{name: "container_fs_writes_total", kind: "counter", help: "Cumulative count of writes completed",
		each: func(r *row, emit func(float64, ...string)) { emit(float64(r.usage.Writes), "device", "") }},
	{name: "container_fs_usage_bytes", kind: "gauge", help: "Number of bytes that are consumed by the container on this filesystem.",
		each: func(r *row, emit func(float64, ...string)) {
			if r.disk != nil {
				emit(float64(r.disk.Bytes), "device", "")
			}
		}},
	{name: "container_network_receive_bytes_total", kind: "counter", help: "Cumulative count of bytes received",
		each: perLink(func(n *netInterface) uint64 { return n.rxBytes })},
	{name: "container_network_receive_packets_total", kind: "counter", help: "Cumulative count of packets received",
		each: perLink(func(n *netInterface) uint64 { return n.rxPackets })},
	{name: "container_network_receive_errors_total", kind: "counter", help: "Cumulative count of errors encountered while receiving",
		each: perLink(func(n *netInterface) uint64 { return n.rxErrors })},
	{name: "container_network_receive_packets_dropped_total", kind: "counter", help: "Cumulative count of packets dropped while receiving",
		each: perLink(func(n *netInterface) uint64 { return n.rxDropped })},
	{name: "container_network_transmit_bytes_total", kind: "counter", help: "Cumulative count of bytes transmitted",
		each: perLink(func(n *netInterface) uint64 { return n.txBytes })},
	{name: "container_network_transmit_packets_total", kind: "counter", help: "Cumulative count of packets transmitted",
		each: perLink(func(n *netInterface) uint64 { return n.txPackets })},
	{name: "container_network_transmit_errors_total", kind: "counter", help: "Cumulative count of errors encountered while transmitting",
		each: perLink(func(n *netInterface) uint64 { return n.txErrors })},
	{name: "container_network_transmit_packets_dropped_total", kind: "counter",
		help: "Cumulative count of packets dropped while transmitting", each: perLink(func(n *netInterface) uint64 { return n.txDropped })},
	{name: "container_pressure_cpu_waiting_seconds_total", kind: "counter",
		help:  "Total time duration tasks in the container have waited due to CPU congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.CPUPressure }, false)},
	{name: "container_pressure_cpu_stalled_seconds_total", kind: "counter",
		help:  "Total time duration no tasks in the container could make progress due to CPU congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.CPUPressure }, true)},
	{name: "container_pressure_memory_waiting_seconds_total", kind: "counter",
		help:  "Total time duration tasks in the container have waited due to memory congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.MemoryPressure }, false)},
	{name: "container_pressure_memory_stalled_seconds_total", kind: "counter",
		help:  "Total time duration no tasks in the container could make progress due to memory congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.MemoryPressure }, true)},
	{name: "container_pressure_io_waiting_seconds_total", kind: "counter",
		help:  "Total time duration tasks in the container have waited due to IO congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.IOPressure }, false)},
	{name: "container_pressure_io_stalled_seconds_total", kind: "counter",
		help:  "Total time duration no tasks in the container could make progress due to IO congestion.",
		value: stall(func(u *Usage) *statsapi.PSIStats { return u.IOPressure }, true)},
	{name: "container_spec_cpu_period", kind: "gauge", help: "CPU period of the container.",
		value: func(r *row) (float64, bool) { return float64(r.usage.CPUPeriod), r.usage.CPUPeriod > 0 }},
	{name: "container_spec_cpu_quota", kind: "gauge", help: "CPU quota of the container.",
		value: func(r *row) (float64, bool) { return float64(r.usage.CPUQuota), r.usage.CPUQuota > 0 }},
	{name: "container_spec_memory_limit_bytes", kind: "gauge", help: "Memory limit for the container.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.MemoryLimit)) }},
	{name: "container_spec_memory_swap_limit_bytes", kind: "gauge", help: "Memory swap limit for the container.",
		value: func(r *row) (float64, bool) { return always(float64(r.usage.SwapLimit)) }},
	{name: "container_spec_cpu_shares", kind: "gauge", help: "CPU share of the container.",
		value: func(r *row) (float64, bool) {
			if r.spec == nil {
				return 0, false
			}
			request, ok := r.spec.Resources.Requests[v1.ResourceCPU]
			if !ok {
				request = *r.spec.Resources.Limits.Cpu()
			}
			return float64(resource.CPUShares(request.MilliValue())), true
		}},
	{name: "container_last_seen", kind: "gauge", help: "Last time a container was seen by the exporter",
		value: func(r *row) (float64, bool) { return always(float64(r.seen.Unix())) }},
	{name: "container_start_time_seconds", kind: "gauge", help: "Start time of the container since unix epoch in seconds.",
		value: func(r *row) (float64, bool) { return always(float64(r.started.Unix())) }},
}

func ofProcesses(value func(*processFacts) uint64) func(*row) (float64, bool) {
	return func(r *row) (float64, bool) {
		if r.inside == nil {
			return 0, false
		}
		return float64(value(r.inside)), true
	}
}

func perLink(value func(*netInterface) uint64) func(*row, func(float64, ...string)) {
	return func(r *row, emit func(float64, ...string)) {
		for i := range r.network {
			emit(float64(value(&r.network[i])), "interface", r.network[i].name)
		}
	}
}

func stall(pick func(*Usage) *statsapi.PSIStats, full bool) func(*row) (float64, bool) {
	return func(r *row) (float64, bool) {
		pressure := pick(&r.usage)
		if pressure == nil {
			return 0, false
		}
		if full {
			return float64(pressure.Full.Total) / 1e6, true
		}
		return float64(pressure.Some.Total) / 1e6, true
	}
}

// WriteCAdvisor writes the container_* and machine_* metrics. Rows are the
// host ("/"), the cgroup of all pods, each pod (which carries the network),
// and each container.
func (p *Provider) WriteCAdvisor(ctx context.Context, out io.Writer) error {
	pods, err := p.measure(ctx, wants{parts: Everything, network: true, processes: true})
	if err != nil {
		return err
	}
	disk := p.disk.get(ctx)
	rows := make([]row, 0, 2+3*len(pods))
	for _, path := range []string{"/", p.cfg.PodsCgroup} {
		usage, err := p.cfg.Reader.Read(path, Everything)
		if path == "" || err != nil {
			continue
		}
		hostInfo := row{id: path, usage: usage, started: p.hostInfo.bootTime}
		if path == "/" {
			(&builder{p: p}).fixRoot(&hostInfo.usage)
			hostInfo.network = readNetwork(hostProc(p.cfg.HostRoot), 1)
		}
		rows = append(rows, hostInfo)
	}
	for i := range pods {
		rows = appendPodRows(rows, &pods[i], disk)
	}
	f := newFamily(out)
	now := p.cfg.Now()
	for i := range rows {
		r := &rows[i]
		r.seen = now
		r.labels = appendLabels(nil, "container", r.container, "id", r.id, "image", r.image, "name", r.name, "namespace", r.namespace,
			"pod", r.pod)
	}
	for i := range cadvisorMetrics {
		f.rows(&cadvisorMetrics[i], rows, now)
	}
	f.hostInfo(p.hostInfo)
	return f.close()
}

func appendPodRows(rows []row, m *measured, disk *diskFacts) []row {
	started := m.pod.CreationTimestamp.Time
	rows = append(rows, row{id: m.path, namespace: m.pod.Namespace, pod: m.pod.Name, usage: m.usage, started: started, network: m.network})
	for i := range m.containers {
		c := &m.containers[i]
		entry := row{container: c.name, id: c.path, image: c.image, name: c.id, namespace: m.pod.Namespace, pod: m.pod.Name,
			usage: c.usage, started: c.started, spec: specOf(m.pod, c.name), inside: c.inside}
		if size, ok := disk.writable[c.id]; ok {
			entry.disk = &size
		}
		rows = append(rows, entry)
	}
	return rows
}

func specOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (f *family) rows(m *metric, rows []row, now time.Time) {
	f.header(m.name, m.kind, m.help)
	for i := range rows {
		r := &rows[i]
		if m.each != nil {
			m.each(r, func(value float64, further ...string) {
				f.labelled(m.name, value, now, r.labels, further...)
			})
			continue
		}
		if value, ok := m.value(r); ok {
			f.labelled(m.name, value, now, r.labels)
		}
	}
}

func (f *family) hostInfo(m hostInfo) {
	f.header("machine_cpu_cores", "gauge", "Number of logical CPU cores.")
	f.sample("machine_cpu_cores", float64(m.cores), time.Time{})
	f.header("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.")
	f.sample("machine_memory_bytes", float64(m.memoryBytes), time.Time{})
	f.header("container_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	f.sample("container_scrape_error", 0, time.Time{})
	f.header("cadvisor_version_info", "gauge", "A metric with a constant '1' value labeled by kernel version and OS version.")
	f.sample("cadvisor_version_info", 1, time.Time{}, "kernelVersion", m.kernel, "osVersion", m.system)
	f.header("machine_swap_bytes", "gauge", "Amount of swap memory available on the machine.")
	f.sample("machine_swap_bytes", float64(m.swapBytes), time.Time{})
}
