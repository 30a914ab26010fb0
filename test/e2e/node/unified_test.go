//go:build vm

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestUnifiedNode runs a whole cluster where systemd keeps cgroup v2: what each
// class of pods gets in the kernel, also after systemd has read its units
// again, and what becomes of a container that takes more memory than it may.
func TestUnifiedNode(t *testing.T) {
	if !kit.CgroupV2() {
		t.Fatal("this machine has no cgroup v2")
	}
	c := kit.NewCluster(t, agentFlags(t, `
featureGates: {MemoryQoS: true}
memoryThrottlingFactor: 0.5
memoryReservationPolicy: TieredReservation
podPidsLimit: 77
`)...)
	c.Up()
	c.Apply(kit.SimplePod("guaranteed", "{limits: {cpu: 100m, memory: 32Mi}}") + "---" +
		kit.SimplePod("burstable", "{requests: {cpu: 50m, memory: 16Mi}, limits: {memory: 48Mi}}") + "---" + kit.SimplePod("besteffort",
		""))
	c.WaitReady("default", "", 3)
	checkTree(c)
	for _, name := range []string{"guaranteed", "burstable", "besteffort"} {
		// Not after the reload: systemd before 253 takes it back from scopes.
		holds(c, c.CgroupOf(name), "memory.oom.group", "1")
	}
	if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("daemon-reload: %v\n%s", err, out)
	}
	checkTree(c)
	pressureIsTold(c)
	groupIsKilled(c)
	slice := strings.Split(c.CgroupOf("besteffort"), "/")[1]
	c.Berth("down", "--data-dir", c.Dir, "--purge")
	if _, err := os.Stat(filepath.Join(kit.CgroupRoot, slice)); err == nil {
		t.Errorf("%s is still there", slice)
	}
}

// holds compares a control file with what it should say.
func holds(c *kit.Cluster, path, file, want string) {
	c.T.Helper()
	text, err := os.ReadFile(filepath.Join(kit.CgroupRoot, path, file))
	if got := strings.TrimSpace(string(text)); err != nil || got != want {
		c.T.Errorf("%s of %s is %q, want %q, %v", file, path, got, want, err)
	}
}

// checkTree compares what the kernel holds with what the pods asked for.
func checkTree(c *kit.Cluster) {
	c.T.Helper()
	read := func(path, file, want string) {
		c.T.Helper()
		holds(c, path, file, want)
	}
	bytes := func(n int64) string { return strconv.FormatInt(n*kit.MiB, 10) }
	pod := func(name, class string) (pod, container string) {
		container = c.CgroupOf(name)
		pod = filepath.Dir(container)
		if want := class + "-pod" + strings.ReplaceAll(string(c.Pod(name).UID), "-", "_") + ".slice"; !strings.HasSuffix(filepath.Base(pod),
			want) {
			c.T.Errorf("%s is in %s, want ...%s", name, pod, want)
		}
		read(pod, "pids.max", "77")
		return pod, container
	}
	g, gc := pod("guaranteed", "kubepods")
	read(g, "cpu.weight", strconv.FormatInt(weightOf(100), 10))
	read(g, "cpu.max", "10000 100000")
	read(g, "memory.max", bytes(32))
	read(g, "memory.min", bytes(32))
	read(gc, "memory.min", bytes(32))
	read(gc, "memory.high", "max")
	b, bc := pod("burstable", "kubepods-burstable")
	read(b, "cpu.weight", strconv.FormatInt(weightOf(50), 10))
	read(b, "cpu.max", "max 100000")
	read(b, "memory.low", bytes(16))
	read(bc, "memory.max", bytes(48))
	read(bc, "memory.low", bytes(16))
	read(bc, "memory.high", bytes(32)) // halfway from request to limit
	class := filepath.Dir(b)
	read(class, "memory.low", bytes(16))
	read(class, "cpu.weight", strconv.FormatInt(weightOf(50), 10))
	e, _ := pod("besteffort", "kubepods-besteffort")
	read(filepath.Dir(e), "cpu.weight", "1")
	read(e, "memory.max", "max")
	pods := filepath.Dir(class)
	read(pods, "memory.min", bytes(32))
	read(pods, "memory.low", bytes(16))
	noWarnings(c)
}

// noWarnings wants no event that says a cgroup could not be made or bounded.
func noWarnings(c *kit.Cluster) {
	c.T.Helper()
	list, err := c.Client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{FieldSelector: "type=" + v1.EventTypeWarning})
	if err != nil {
		c.T.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == "FailedNodeAllocatableEnforcement" || e.Reason == "FailedCreatePodContainer" {
			c.T.Errorf("event %s: %s", e.Reason, e.Message)
		}
	}
}

// pressureIsTold wants stalls of tasks in the answers of the agent's API.
func pressureIsTold(c *kit.Cluster) {
	c.T.Helper()
	node := c.NodeName()
	for path, want := range map[string]string{"stats/summary": `"psi":{"full":`,
		"metrics/cadvisor": "container_pressure_memory_waiting_seconds_total{"} {
		if out := c.Kubectl("get", "--raw", fmt.Sprintf("/api/v1/nodes/%s/proxy/%s", node, path)); !strings.Contains(out, want) {
			c.T.Errorf("%s says nothing of %s", path, want)
		}
	}
}

// groupIsKilled lets a second process of a container take more than its limit:
// the container ends as one.
func groupIsKilled(c *kit.Cluster) {
	c.T.Helper()
	c.Apply(kit.SimplePod("group", "{limits: {cpu: 500m, memory: 32Mi}}"))
	before := c.Container("group")
	if out, err := c.TryKubectl("", "exec", "group", "--", "hog", "100"); err == nil {
		c.T.Errorf("taking 100 of 32 MiB: %s", out)
	}
	c.WaitRestarted("group", before)
	if end := c.Pod("group").Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.Reason != "OOMKilled" ||
		end.ExitCode != 137 {
		c.T.Errorf("the container ended as %+v", end)
	}
}
