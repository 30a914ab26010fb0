package start

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/runtime"
)

// Resize makes a pod's cgroup and running containers have what the pod says.
// The pod's cgroup must never be smaller than its containers, so it is written
// first, which succeeds where it grows, and again when the containers are done.
func (c *Starter) Resize(ctx context.Context, p *v1.Pod, running map[string]string) error {
	if err := c.roomToShrink(p); err != nil {
		return err
	}
	_ = c.cfg.Cgroups.Update(p) // a smaller one may be refused while containers are larger
	in, err := c.inputIn(p, c.cfg.Cgroups.Parent(p))
	if err != nil && len(running) > 0 {
		return err
	}
	var changes []resizing
	for _, ct := range container.All(p) {
		id, ok := running[ct.Name]
		if !ok {
			continue
		}
		in.CPUSet = map[string]container.CPUSet{ct.Name: c.place(p.UID, ct.Name)}
		change := resizing{name: ct.Name, id: id, want: container.Resources(in, ct)}
		change.has = c.enforced(p.UID, id)
		changes = append(changes, change)
	}
	slices.SortStableFunc(changes, shrinkFirst)
	for _, r := range changes {
		if err := c.cfg.Runtime.UpdateContainerResources(ctx, r.id, &runtimeapi.ContainerResources{Linux: r.want}); err != nil {
			return fmt.Errorf("resizing container %q: %w", r.name, err)
		}
	}
	if err := c.cfg.Cgroups.Update(p); err != nil {
		return err
	}
	if len(running) == 0 {
		return nil
	}
	sandbox, err := container.SandboxConfig(in)
	if err != nil {
		return err
	}
	c.updateSandbox(ctx, p.UID, sandbox.GetLinux())
	return nil
}

// resizing is one running container that is to get other resources. has is nil
// where the runtime does not say what it enforces.
type resizing struct {
	name, id  string
	has, want *runtimeapi.LinuxContainerResources
}

// shrinkFirst orders containers so that those which give memory back, and then
// those which give CPUs back, come before those which take: together they
// never have more than the larger of before and after.
func shrinkFirst(a, b resizing) int {
	return cmp.Or(cmp.Compare(a.memory(), b.memory()), cmp.Compare(a.cpu(), b.cpu()))
}

func (r resizing) memory() int {
	return cmp.Compare(unbounded(r.want.GetMemoryLimitInBytes()), unbounded(r.has.GetMemoryLimitInBytes()))
}

func (r resizing) cpu() int {
	return cmp.Compare(unbounded(r.want.GetCpuQuota()), unbounded(r.has.GetCpuQuota()))
}

// unbounded makes "no limit" larger than any.
func unbounded(n int64) int64 {
	if n <= 0 {
		return math.MaxInt64
	}
	return n
}

// roomToShrink refuses a memory limit below what the pod uses: the kernel would
// kill for it.
func (c *Starter) roomToShrink(p *v1.Pod) error {
	limit := resource.PodLimits(p, resource.PodOptions{}).MemoryLimit
	if limit <= 0 {
		return nil
	}
	used, err := c.cfg.MemoryUsed(p)
	if err != nil || used < limit {
		return nil //nolint:nilerr // what cannot be measured does not hold a resize up
	}
	return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
}

// enforced is what the runtime last said a container may use, nil if it did not.
func (c *Starter) enforced(uid types.UID, id string) *runtimeapi.LinuxContainerResources {
	if held := c.cfg.Held.Pod(uid); held != nil {
		for _, one := range held.Containers {
			if one.ID == id {
				return one.Resources.GetLinux()
			}
		}
	}
	return nil
}

// updateSandbox tells the runtime what a pod as a whole may use. That is for
// runtimes that keep account of it; most do not know the call.
func (c *Starter) updateSandbox(ctx context.Context, uid types.UID, cfg *runtimeapi.LinuxPodSandboxConfig) {
	held := c.cfg.Held.Pod(uid)
	if held == nil || len(held.Sandboxes) == 0 {
		return
	}
	_, err := c.cfg.Runtime.UpdatePodSandboxResources(klog.NewContext(ctx, klog.Logger{}), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: held.Sandboxes[0].ID, Overhead: cfg.GetOverhead(), Resources: cfg.GetResources(),
	})
	if err != nil && !runtime.IsUnimplemented(err) {
		c.cfg.Problem("telling the runtime of a pod's resources", uid, err)
	}
}
