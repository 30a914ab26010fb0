package stats

import (
	"context"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// slab hands out pointers to numbers from few allocations: a summary of a full
// node has thousands of them.
type slab struct{ free []uint64 }

func (s *slab) put(value uint64) *uint64 {
	if len(s.free) == 0 {
		s.free = make([]uint64, 512)
	}
	s.free[0] = value
	pointer := &s.free[0]
	s.free = s.free[1:]
	return pointer
}

// Summary answers the summary API. With onlyCPUAndMemory nothing but those is
// measured, for the node, pods and containers.
func (p *Provider) Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	p.forgetRates()
	parts := CPU | Memory
	if p.hostInfo.swapBytes > 0 {
		parts |= Swap
	}
	if !onlyCPUAndMemory {
		parts |= PIDs | Pressure
	}
	pods, err := p.measure(ctx, wants{parts: parts, network: !onlyCPUAndMemory})
	if err != nil {
		return nil, err
	}
	builder := &builder{p: p, now: p.cfg.Now(), slab: &slab{}, brief: onlyCPUAndMemory}
	builder.stamp = metav1.NewTime(builder.now)
	if !onlyCPUAndMemory {
		builder.disk = p.disk.get(ctx)
	}
	summary := &statsapi.Summary{Pods: make([]statsapi.PodStats, 0, len(pods))}
	if summary.Node, err = builder.node(parts); err != nil {
		return nil, err
	}
	for i := range pods {
		summary.Pods = append(summary.Pods, builder.pod(&pods[i]))
	}
	return summary, nil
}

// builder spells measurements as the summary API does.
type builder struct {
	p     *Provider
	now   time.Time
	stamp metav1.Time
	slab  *slab
	brief bool
	disk  *diskFacts // nil if brief
}

func (b *builder) node(parts parts) (statsapi.NodeStats, error) {
	p := b.p
	node := statsapi.NodeStats{NodeName: p.cfg.NodeName, StartTime: metav1.NewTime(p.hostInfo.bootTime)}
	usage, err := p.cfg.Reader.Read("/", parts)
	if err != nil {
		return node, err
	}
	b.fixRoot(&usage)
	node.CPU = b.cpu("/", usage, p.hostInfo.bootTime)
	node.Memory = b.memory(usage, p.hostInfo.memoryBytes)
	node.Swap = b.swap(usage.Swap, p.hostInfo.swapBytes)
	node.SystemContainers = b.systemContainers(parts)
	if b.brief {
		return node, nil
	}
	if usage.IOPressure != nil {
		node.IO = &statsapi.IOStats{Time: b.stamp, PSI: usage.IOPressure}
	}
	node.Network = b.network(readNetwork(hostProc(p.cfg.HostRoot), 1))
	node.Fs = b.fs(b.disk.root)
	if b.disk.image != nil {
		node.Runtime = &statsapi.RuntimeStats{ImageFs: b.fs(*b.disk.image), ContainerFs: b.fs(*b.disk.container)}
	}
	running, limit := processes(p.cfg.HostRoot)
	node.Rlimit = &statsapi.RlimitStats{Time: b.stamp, MaxPID: &limit, NumOfRunningProcesses: &running}
	return node, nil
}

// fixRoot takes the host's memory from /proc/meminfo: the root cgroup does
// not account for all of it, and in version 2 not at all.
func (b *builder) fixRoot(usage *Usage) {
	info, err := readMeminfo(b.p.cfg.HostRoot)
	if err != nil {
		return
	}
	usage.Memory = below(info["MemTotal"], info["MemFree"])
	usage.WorkingSet = below(usage.Memory, info["Inactive(file)"])
	usage.RSS = info["AnonPages"]
	usage.Swap = below(info["SwapTotal"], info["SwapFree"])
	usage.MemoryLimit = 0
}

func (b *builder) systemContainers(parts parts) []statsapi.ContainerStats {
	paths := map[string]string{}
	for name, path := range b.p.cfg.SystemCgroups {
		paths[name] = path
	}
	if b.p.cfg.PodsCgroup != "" {
		paths[statsapi.SystemContainerPods] = b.p.cfg.PodsCgroup
	}
	names := make([]string, 0, len(paths))
	for name := range paths {
		names = append(names, name)
	}
	sort.Strings(names)
	var list []statsapi.ContainerStats
	for _, name := range names {
		usage, err := b.p.cfg.Reader.Read(paths[name], parts)
		if err != nil {
			continue
		}
		stats := statsapi.ContainerStats{Name: name, StartTime: metav1.NewTime(b.p.hostInfo.bootTime),
			Swap: b.swap(usage.Swap, usage.SwapLimit),
			CPU:  b.cpu(paths[name], usage, b.p.hostInfo.bootTime), Memory: b.memory(usage, usage.MemoryLimit)}
		if usage.IOPressure != nil && !b.brief {
			stats.IO = &statsapi.IOStats{Time: b.stamp, PSI: usage.IOPressure}
		}
		list = append(list, stats)
	}
	return list
}

func (b *builder) pod(m *measured) statsapi.PodStats {
	pod := m.pod
	stats := statsapi.PodStats{
		PodRef:     statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Containers: make([]statsapi.ContainerStats, 0, len(m.containers)),
	}
	started := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		started = pod.Status.StartTime.Time
	}
	stats.StartTime = metav1.NewTime(started)
	stats.CPU = b.cpu(m.path, m.usage, started)
	stats.Memory = b.memory(m.usage, m.usage.MemoryLimit)
	stats.Swap = b.swap(m.usage.Swap, m.usage.SwapLimit)
	storage := DiskUse{}
	for i := range m.containers {
		container, size := b.container(m, &m.containers[i])
		storage.Bytes += size.Bytes
		storage.Inodes += size.Inodes
		stats.Containers = append(stats.Containers, container)
	}
	if b.brief {
		return stats
	}
	stats.ProcessStats = &statsapi.ProcessStats{ProcessCount: b.slab.put(m.usage.PIDs)}
	if m.usage.IOPressure != nil {
		stats.IO = &statsapi.IOStats{Time: b.stamp, PSI: m.usage.IOPressure}
	}
	stats.Network = b.network(m.network)
	for i := range b.disk.volumes[pod.UID] {
		volume := &b.disk.volumes[pod.UID][i]
		if volume.Shared {
			storage.Bytes += volume.usage.used
			storage.Inodes += volume.usage.inodesUsed
		}
		entry := statsapi.VolumeStats{Name: volume.Name, FsStats: *b.fs(volume.usage)}
		entry.Time = metav1.NewTime(volume.at)
		if volume.Claim != "" {
			entry.PVCRef = &statsapi.PVCReference{Name: volume.Claim, Namespace: pod.Namespace}
		}
		stats.VolumeStats = append(stats.VolumeStats, entry)
	}
	whole := b.disk.root
	whole.used, whole.inodesUsed = storage.Bytes, storage.Inodes
	stats.EphemeralStorage = b.fs(whole)
	return stats
}

// container also returns what the container stores on the node's disk.
func (b *builder) container(m *measured, c *measuredContainer) (statsapi.ContainerStats, DiskUse) {
	stats := statsapi.ContainerStats{
		Name: c.name, StartTime: metav1.NewTime(c.started),
		CPU: b.cpu(c.path, c.usage, c.started), Memory: b.memory(c.usage, c.usage.MemoryLimit),
		Swap: b.swap(c.usage.Swap, c.usage.SwapLimit),
	}
	if b.brief {
		return stats, DiskUse{}
	}
	if c.usage.IOPressure != nil {
		stats.IO = &statsapi.IOStats{Time: b.stamp, PSI: c.usage.IOPressure}
	}
	total := DiskUse{}
	if layer, ok := b.disk.writable[c.id]; ok && b.disk.container != nil {
		whole := *b.disk.container
		whole.used, whole.inodesUsed = layer.Bytes, layer.Inodes
		stats.Rootfs = b.fs(whole)
		total.Bytes, total.Inodes = layer.Bytes, layer.Inodes
	}
	if log, ok := b.disk.logs[m.pod.UID][c.name]; ok {
		whole := b.disk.root
		whole.used, whole.inodesUsed = log.Bytes, log.Inodes
		stats.Logs = b.fs(whole)
		total.Bytes += log.Bytes
		total.Inodes += log.Inodes
	}
	return stats, total
}

func (b *builder) cpu(path string, usage Usage, birth time.Time) *statsapi.CPUStats {
	return &statsapi.CPUStats{Time: b.stamp, UsageCoreNanoSeconds: b.slab.put(usage.CPU),
		UsageNanoCores: b.slab.put(b.p.rate(path, usage.CPU, birth, b.now)), PSI: usage.CPUPressure}
}

// memory shows available bytes only where there is a limit to be available
// below.
func (b *builder) memory(usage Usage, limit uint64) *statsapi.MemoryStats {
	stats := &statsapi.MemoryStats{Time: b.stamp, UsageBytes: b.slab.put(usage.Memory), WorkingSetBytes: b.slab.put(usage.WorkingSet),
		RSSBytes: b.slab.put(usage.RSS), PageFaults: b.slab.put(usage.PageFaults), MajorPageFaults: b.slab.put(usage.MajorFaults),
		PSI: usage.MemoryPressure}
	if limit > 0 {
		stats.AvailableBytes = b.slab.put(below(limit, usage.WorkingSet))
	}
	return stats
}

func (b *builder) swap(used, limit uint64) *statsapi.SwapStats {
	return &statsapi.SwapStats{Time: b.stamp, SwapUsageBytes: b.slab.put(used), SwapAvailableBytes: b.slab.put(below(limit, used))}
}

func (b *builder) fs(usage fsUsage) *statsapi.FsStats {
	return &statsapi.FsStats{Time: b.stamp,
		CapacityBytes: b.slab.put(usage.capacity), AvailableBytes: b.slab.put(usage.available), UsedBytes: b.slab.put(usage.used),
		Inodes: b.slab.put(usage.inodes), InodesFree: b.slab.put(usage.inodesFree), InodesUsed: b.slab.put(usage.inodesUsed)}
}

// network shows the first interface as the default one, eth0 if there is one.
func (b *builder) network(list []netInterface) *statsapi.NetworkStats {
	if len(list) == 0 {
		return nil
	}
	stats := &statsapi.NetworkStats{Time: b.stamp, Interfaces: make([]statsapi.InterfaceStats, 0, len(list))}
	for _, link := range list {
		entry := statsapi.InterfaceStats{Name: link.name, RxBytes: b.slab.put(link.rxBytes), RxErrors: b.slab.put(link.rxErrors),
			TxBytes: b.slab.put(link.txBytes), TxErrors: b.slab.put(link.txErrors)}
		if link.name == "eth0" || stats.Name == "" {
			stats.InterfaceStats = entry
		}
		stats.Interfaces = append(stats.Interfaces, entry)
	}
	return stats
}

func hostProc(root string) string {
	if root == "/" {
		return "/proc"
	}
	return root + "/proc"
}
