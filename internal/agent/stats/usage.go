package stats

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// podUsage is what a pod uses, for anyone who decides about it.
type podUsage struct {
	Pod *v1.Pod
	// Measured is false if the pod has no cgroup: nothing of it runs.
	Measured   bool
	WorkingSet uint64
	Processes  uint64
	Containers map[string]containerUse
	// Volumes are those on the agent's file system.
	Volumes map[string]DiskUse
}

// containerUse is what one container uses.
type containerUse struct {
	WorkingSet   uint64
	Rootfs, Logs DiskUse
}

// DiskUse is what something occupies on a disk.
type DiskUse struct{ Bytes, Inodes uint64 }

// Usage measures the given pods. With storage their logs, volumes and writable
// layers are walked now; layers that only the runtime can measure are at most
// DiskAge old.
func (p *Provider) Usage(ctx context.Context, pods []*v1.Pod, storage bool) ([]podUsage, error) {
	var facts *diskFacts
	var dirs map[string]string
	if storage {
		facts = p.disk.get(ctx)
		dirs, _ = p.writableDirs()
	}
	list := make([]podUsage, 0, len(pods))
	for _, pod := range pods {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m := p.measurePod(pod, wants{parts: Memory | PIDs})
		usage := podUsage{Pod: pod, Measured: m.pod != nil, WorkingSet: m.usage.WorkingSet, Processes: m.usage.PIDs,
			Containers: map[string]containerUse{}, Volumes: map[string]DiskUse{}}
		for i := range m.containers {
			container := &m.containers[i]
			use := containerUse{WorkingSet: container.usage.WorkingSet}
			if facts != nil {
				use.Rootfs = facts.writable[container.id]
				if dir := dirs[container.id]; dir != "" {
					if size, err := walk(dir); err == nil {
						use.Rootfs = size
					}
				}
			}
			usage.Containers[container.name] = use
		}
		if storage {
			p.storage(ctx, &usage)
		}
		list = append(list, usage)
	}
	return list, nil
}

func (p *Provider) storage(ctx context.Context, usage *podUsage) {
	for name, size := range p.disk.readLogs(usage.Pod) {
		container := usage.Containers[name]
		container.Logs = size
		usage.Containers[name] = container
	}
	if p.cfg.Volumes == nil {
		return
	}
	for _, volume := range p.cfg.Volumes(usage.Pod.UID) {
		if !volume.Shared {
			continue
		}
		if size, ok := p.disk.readVolume(ctx, volume); ok {
			usage.Volumes[volume.Name] = DiskUse{Bytes: size.used, Inodes: size.inodesUsed}
		}
	}
}

// Memory measures one cgroup; limit is zero for none.
func (p *Provider) Memory(path string) (workingSet, limit uint64, err error) {
	usage, err := p.cfg.Reader.Read(path, Memory)
	return usage.WorkingSet, usage.MemoryLimit, err
}

// MemoryOfPods gives the working sets of pods, in bytes, whose cgroups are at path.
func (p *Provider) MemoryOfPods(path func(*v1.Pod) string) func(*v1.Pod) (int64, error) {
	return func(pod *v1.Pod) (int64, error) {
		used, _, err := p.Memory(path(pod))
		return int64(used), err
	}
}
