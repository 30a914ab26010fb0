package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// Bits of Linux capabilities.
const (
	capMknod   = 1 << 27
	capNetRaw  = 1 << 13
	capAudit   = 1 << 29
	capSetfcap = 1 << 31
	capChroot  = 1 << 18
	capChown   = 1 << 0
)

const secondPod = `
apiVersion: v1
kind: Pod
metadata: {name: asks, labels: {app: asks}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "berth.dev/toolbox:1", args: [serve], securityContext: {seccompProfile: {type: Unconfined}, capabilities: {add: ` +
	`[NET_RAW]}}}
`

// TestHardened: what the kernel says of containers of a hardened cluster. A pod
// that names nothing has a seccomp filter, a limit of processes and no
// dangerous capability; one that asks gets what it asks for, and no more.
func TestHardened(t *testing.T) {
	c := kit.NewCluster(t, "--hardened")
	c.Up()
	c.Apply(kit.SimplePod("plain", ""))
	c.Apply(secondPod)
	plain, asks := c.Container("plain"), c.Container("asks")
	caps, seccomp := confinement(t, plain.PID)
	if bad := caps & (capMknod | capNetRaw | capAudit | capSetfcap | capChroot); bad != 0 || caps&capChown == 0 {
		t.Errorf("the plain container has the capabilities %#x", caps)
	}
	if seccomp != "2" {
		t.Errorf("the plain container's seccomp mode is %s, want 2 (filter)", seccomp)
	}
	if caps, seccomp = confinement(t, asks.PID); caps&capNetRaw == 0 || caps&(capMknod|capSetfcap) != 0 || seccomp != "0" {
		t.Errorf("the container that asks has the capabilities %#x and seccomp mode %s", caps, seccomp)
	}
	dir := filepath.Dir(cgroupNamed(c, "plain", "pids"))
	limit, err := os.ReadFile(filepath.Join(pidsRoot(), dir, "pids.max"))
	if err != nil || strings.TrimSpace(string(limit)) != "4096" {
		t.Errorf("the pod's limit of processes is %q (%v), want 4096", limit, err)
	}
}

// confinement is what the kernel says of a process.
func confinement(t *testing.T, pid int) (caps uint64, seccomp string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "CapBnd":
			if caps, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil {
				t.Fatal(err)
			}
		case "Seccomp":
			seccomp = strings.TrimSpace(value)
		}
	}
	return caps, seccomp
}

func pidsRoot() string {
	if kit.CgroupV2() {
		return kit.CgroupRoot
	}
	return filepath.Join(kit.CgroupRoot, "pids")
}

// cgroupNamed is the cgroup of a pod's only container in one v1 hierarchy, or
// in the only one of v2.
func cgroupNamed(c *kit.Cluster, pod, controller string) string {
	c.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Container(pod).PID))
	if err != nil {
		c.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && (fields[1] == controller || kit.CgroupV2() && fields[0] == "0") {
			return fields[2]
		}
	}
	c.T.Fatalf("no cgroup of %s in %s", controller, text)
	return ""
}
