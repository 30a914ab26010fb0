package kit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// MiB is a MiB in bytes.
const MiB = 1 << 20

// CgroupRoot is where cgroups are mounted.
const CgroupRoot = "/sys/fs/cgroup"

// CgroupV2 tells whether this host has cgroup v2. Controllers of v1 are
// expected in their usual places.
func CgroupV2() bool {
	_, err := os.Stat(filepath.Join(CgroupRoot, "cgroup.controllers"))
	return err == nil
}

// PodsCgroup is where this cluster's pods are, from a process of one of them.
func (c *Cluster) PodsCgroup() string {
	c.T.Helper()
	c.Apply(SimplePod("probe", ""))
	c.WaitReady("default", "app=probe", 1)
	path := c.CgroupOf("probe")
	elements := strings.Split(path, "/")
	for i, e := range elements {
		if strings.Contains(e, "kubepods") {
			return strings.Join(elements[:i+1], "/")
		}
	}
	c.T.Fatalf("%s is not among the cgroups of pods", path)
	return ""
}

// CgroupOf is the cgroup of a pod's only container that memory is counted in.
func (c *Cluster) CgroupOf(pod string) string {
	c.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.ContainerPIDs()[c.Container(pod).ID]))
	if err != nil {
		c.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		separator := ":memory:"
		if CgroupV2() {
			separator = "0::"
		}
		if _, path, ok := strings.Cut(strings.TrimSpace(line), separator); ok {
			return path
		}
	}
	c.T.Fatalf("no memory cgroup in %s", text)
	return ""
}
