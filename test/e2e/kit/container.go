package kit

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ContainerPIDs maps container IDs of running containers to their processes,
// from the kernel: /proc of every process whose parent is a shim of this
// cluster.
func (c *Cluster) ContainerPIDs() map[string]int {
	c.T.Helper()
	out := map[string]int{}
	tasks := filepath.Join(c.Dir, "run", "containerd", "io.containerd.runtime.v2.task", "k8s.io")
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return out
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(tasks, e.Name(), "init.pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err == nil {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				out[e.Name()] = pid
			}
		}
	}
	return out
}

// Container is one run of a pod's only container.
type Container struct {
	ID       string
	PID      int
	restarts int32
}

// Container waits until the pod is Ready and says what runs in it.
func (c *Cluster) Container(pod string) Container {
	c.T.Helper()
	cs := c.WaitReady("default", "app="+pod, 1)[0].Status.ContainerStatuses[0]
	_, id, _ := strings.Cut(cs.ContainerID, "://")
	pid := c.ContainerPIDs()[id]
	if pid == 0 {
		c.T.Fatalf("pod %s is Ready but its container %s has no process", pod, id)
	}
	return Container{id, pid, cs.RestartCount}
}

// WaitRestarted waits until the pod runs a newer container than old and checks
// that the restart was counted once.
func (c *Cluster) WaitRestarted(pod string, old Container) {
	c.T.Helper()
	c.Eventually("a new container in "+pod, func() (bool, string) {
		pods := c.Pods("default", "app="+pod)
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, fmt.Sprint(len(pods), " pods")
		}
		cs := pods[0].Status.ContainerStatuses[0]
		return PodReady(&pods[0]) && cs.State.Running != nil && !strings.HasSuffix(cs.ContainerID, old.ID) &&
			pods[0].Status.Phase == v1.PodRunning, Describe(&pods[0])
	})
	now := c.Container(pod)
	if now.restarts != old.restarts+1 {
		c.T.Errorf("pod %s: %d restarts, want %d", pod, now.restarts, old.restarts+1)
	}
}
