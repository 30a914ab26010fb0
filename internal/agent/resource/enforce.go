package resource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// PIDs is how reservations name processes.
const PIDs v1.ResourceName = "pid"

// ReservedLimits bounds a cgroup by what is reserved for it. compressible
// leaves out all but CPU time, whose lack slows but does not kill.
func ReservedLimits(reserved v1.ResourceList, compressible bool) Limits {
	var l Limits
	if q, ok := reserved[v1.ResourceCPU]; ok {
		l.CPUShares = CPUShares(q.MilliValue())
	}
	if compressible {
		return l
	}
	if q, ok := reserved[v1.ResourceMemory]; ok {
		l.MemoryLimit = q.Value()
	}
	if q, ok := reserved[PIDs]; ok {
		l.PidsLimit = q.Value()
	}
	for name, q := range reserved {
		if size, ok := HugepageSize(name); ok {
			if l.Hugepages == nil {
				l.Hugepages = map[string]int64{}
			}
			l.Hugepages[size] = q.Value()
		}
	}
	return l
}

// Enforce bounds a cgroup that another party made, named as in the
// configuration ("/system", "system.slice"). One that does not exist is an
// error: making an empty one would bound no one.
func (c *Cgroups) Enforce(name string, l Limits) error {
	n, err := newNames(c.cfg.Driver, name)
	if err != nil {
		return err
	}
	path := n.render()
	for _, s := range settings(c.cfg.Hierarchy.Version(), l) {
		mount := c.cfg.Hierarchy.Unified
		if mount == "" {
			if mount = c.cfg.Hierarchy.V1[s.controller]; mount == "" {
				continue
			}
		}
		if _, err := os.Stat(filepath.Join(mount, path)); err != nil {
			return fmt.Errorf("cgroup %q is not in %s: make it before the agent starts: %w", path, mount, err)
		}
	}
	if err := c.apply(path, l); err != nil {
		return fmt.Errorf("bounding cgroup %q: %w", path, err)
	}
	return nil
}

// SwapControlled tells whether the kernel can bound the swap of pods on cgroup
// v2. Nothing is known without pod cgroups; the kernel is then taken to be able
// to where it has swap at all.
func (c *Cgroups) SwapControlled() bool {
	if c.cfg.Hierarchy.Version() != 2 {
		return true
	}
	file := "/proc/swaps"
	if c.cfg.PerQOS {
		file = filepath.Join(c.cfg.Hierarchy.Unified, c.names.pods(), "memory.swap.max")
	}
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}
