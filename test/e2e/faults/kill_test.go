package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestKillEachProcess kills a container, a shim, and the runtime while berth
// is down, and simulates a reboot without a shutdown; each time the cluster
// must end where the user wants it.
func TestKillEachProcess(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	c.Apply(`
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
	c.WaitReady("default", "app=victim", 1)
	untouched := c.Container("bystander")

	t.Run("container", func(t *testing.T) {
		old := c.Container("victim")
		kit.KillProcess(t, c.ContainerPIDs()[old.ID])
		c.WaitRestarted("victim", old)
	})
	t.Run("shim", func(t *testing.T) {
		old := c.Container("victim")
		kit.KillProcess(t, parent(t, c.ContainerPIDs()[old.ID]))
		c.WaitRestarted("victim", old)
	})
	t.Run("container while berth is down", func(t *testing.T) {
		old := c.Container("victim")
		kit.KillProcess(t, c.PID())
		kit.KillProcess(t, c.ContainerPIDs()[old.ID])
		c.MustUp(t)
		c.WaitRestarted("victim", old)
	})
	t.Run("runtime while berth is down", func(t *testing.T) {
		old := c.Container("victim")
		kit.KillProcess(t, c.PID())
		kit.KillProcess(t, c.RuntimePID())
		c.MustUp(t)
		if now := c.Container("victim"); now != old {
			t.Errorf("the container changed: %+v, was %+v", now, old)
		}
	})
	if now := c.Container("bystander"); now != untouched {
		t.Errorf("the other pod was touched: %+v, was %+v", now, untouched)
	}
	t.Run("reboot without a shutdown", func(t *testing.T) {
		victim, bystander := c.Container("victim"), c.Container("bystander")
		crash(c, t)
		c.MustUp(t)
		c.WaitRestarted("victim", victim)
		c.WaitRestarted("bystander", bystander)
	})
	t.Run("down after the runtime died", func(t *testing.T) {
		kit.KillProcess(t, c.PID())
		kit.KillProcess(t, c.RuntimePID())
		c.Disconnect()
		c.Down()
		if left := c.ContainerPIDs(); len(left) != 0 {
			t.Errorf("containers still run: %v", left)
		}
	})
}

// crash ends everything of the cluster the way a power cut does, and makes
// the data directory look as if the host had started again: another boot
// id, no processes, no mounts, no network namespaces.
func crash(c *kit.Cluster, t *testing.T) {
	t.Helper()
	kit.KillProcess(t, c.PID())
	kit.KillProcess(t, c.RuntimePID())
	for _, pid := range c.ContainerPIDs() {
		if shim, err := parentOf(pid); err == nil && shim > 1 {
			kit.KillProcess(t, shim)
		}
		kit.KillProcess(t, pid)
	}
	kit.WriteFile(t, filepath.Join(c.Dir, "run", "boot-id"), "another-boot", 0o644)
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
