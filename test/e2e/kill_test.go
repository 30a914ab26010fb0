package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// TestKillEachProcess kills a container, a shim, and the runtime while berth
// is down, and simulates a reboot without a shutdown; each time the cluster
// must end where the user wants it.
func TestKillEachProcess(t *testing.T) {
	c := newCluster(t)
	c.up()
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: victim, labels: {app: victim}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve]}]
---
apiVersion: v1
kind: Pod
metadata: {name: bystander, labels: {app: bystander}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve]}]
`)
	c.waitReady("default", "app=victim", 1)
	untouched := c.container("bystander")

	t.Run("container", func(t *testing.T) {
		old := c.container("victim")
		kill(t, c.containerPIDs()[old.id])
		c.restarted("victim", old)
	})
	t.Run("shim", func(t *testing.T) {
		old := c.container("victim")
		kill(t, parent(t, c.containerPIDs()[old.id]))
		c.restarted("victim", old)
	})
	t.Run("container while berth is down", func(t *testing.T) {
		old := c.container("victim")
		kill(t, c.pid())
		kill(t, c.containerPIDs()[old.id])
		c.mustUp(t)
		c.restarted("victim", old)
	})
	t.Run("runtime while berth is down", func(t *testing.T) {
		old := c.container("victim")
		kill(t, c.pid())
		kill(t, c.runtimePID())
		c.mustUp(t)
		if now := c.container("victim"); now != old {
			t.Errorf("the container changed: %+v, was %+v", now, old)
		}
	})
	if now := c.container("bystander"); now != untouched {
		t.Errorf("the other pod was touched: %+v, was %+v", now, untouched)
	}
	t.Run("reboot without a shutdown", func(t *testing.T) {
		victim, bystander := c.container("victim"), c.container("bystander")
		c.crash(t)
		c.mustUp(t)
		c.restarted("victim", victim)
		c.restarted("bystander", bystander)
	})
	t.Run("down after the runtime died", func(t *testing.T) {
		kill(t, c.pid())
		kill(t, c.runtimePID())
		c.disconnect()
		c.down()
		if left := c.containerPIDs(); len(left) != 0 {
			t.Errorf("containers still run: %v", left)
		}
	})
}

// container is one run of a pod's only container.
type container struct {
	id       string
	pid      int
	restarts int32
}

// container waits until the pod is Ready and says what runs in it.
func (c *cluster) container(pod string) container {
	c.t.Helper()
	cs := c.waitReady("default", "app="+pod, 1)[0].Status.ContainerStatuses[0]
	_, id, _ := strings.Cut(cs.ContainerID, "://")
	pid := c.containerPIDs()[id]
	if pid == 0 {
		c.t.Fatalf("pod %s is Ready but its container %s has no process", pod, id)
	}
	return container{id, pid, cs.RestartCount}
}

// restarted waits until the pod runs a newer container than old and checks
// that the restart was counted once.
func (c *cluster) restarted(pod string, old container) {
	c.t.Helper()
	c.eventually("a new container in "+pod, func() (bool, string) {
		pods := c.pods("default", "app="+pod)
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
			return false, fmt.Sprint(len(pods), " pods")
		}
		cs := pods[0].Status.ContainerStatuses[0]
		return podReady(&pods[0]) && cs.State.Running != nil && !strings.HasSuffix(cs.ContainerID, old.id) &&
			pods[0].Status.Phase == v1.PodRunning, describe(&pods[0])
	})
	now := c.container(pod)
	if now.restarts != old.restarts+1 {
		c.t.Errorf("pod %s: %d restarts, want %d", pod, now.restarts, old.restarts+1)
	}
}

// mustUp starts berth again; the test's client finds it by itself.
func (c *cluster) mustUp(t *testing.T) {
	t.Helper()
	if out, err := c.tryUp(); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
}

// crash ends everything of the cluster the way a power cut does, and makes
// the data directory look as if the machine had started anew: another boot
// id, no processes, no mounts, no network namespaces.
func (c *cluster) crash(t *testing.T) {
	t.Helper()
	kill(t, c.pid())
	kill(t, c.runtimePID())
	for _, pid := range c.containerPIDs() {
		if shim, err := parentOf(pid); err == nil && shim > 1 {
			kill(t, shim)
		}
		kill(t, pid)
	}
	write(t, filepath.Join(c.dir, "run", "boot-id"), "another-boot", 0o644)
}

// kill ends a process at once and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to kill: %d", pid)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH { //nolint:errorlint // a plain errno
		t.Fatal(err)
	}
	waitGone(t, pid)
}

func parent(t *testing.T, pid int) int {
	t.Helper()
	p, err := parentOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// parentOf reads the fourth field of /proc/PID/stat; the second may hold
// spaces and ends with the last parenthesis.
func parentOf(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	return strconv.Atoi(fields[1])
}
