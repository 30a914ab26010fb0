package faults

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/testtimeout"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// roomForPods is what the node of the memory test has for pods.
const roomForPods, memoryThreshold = 600, 100

// hogRate is what the hog takes of it per second, in MiB.
var hogRate = 50 / testtimeout.Multiplier

// evicted waits until the node has ended a pod and returns it.
func evicted(c *kit.Cluster, name string) *v1.Pod {
	c.T.Helper()
	var pod *v1.Pod
	c.Eventually("eviction of "+name, func() (bool, string) {
		var err error
		if pod, err = c.Client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		return pod.Status.Phase == v1.PodFailed, kit.Describe(pod) + " " + pod.Status.Reason + " " + pod.Status.Message
	})
	return pod
}

func nodeCondition(c *kit.Cluster, kind v1.NodeConditionType) *v1.NodeCondition {
	c.T.Helper()
	nodes, err := c.Client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		c.T.Fatalf("listing nodes: %v", err)
	}
	for i := range nodes.Items[0].Status.Conditions {
		if nodes.Items[0].Status.Conditions[i].Type == kind {
			return &nodes.Items[0].Status.Conditions[i]
		}
	}
	return nil
}

// waitEvent waits for an event and returns its message.
func waitEvent(c *kit.Cluster, kind, name, reason string) *v1.Event {
	c.T.Helper()
	var found *v1.Event
	c.Eventually(fmt.Sprintf("event %s on %s %s", reason, kind, name), func() (bool, string) {
		list, err := c.Client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return false, err.Error()
		}
		for i := range list.Items {
			if o := list.Items[i].InvolvedObject; o.Kind == kind && (name == "" || o.Name == name) {
				found = &list.Items[i]
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d such events", len(list.Items))
	})
	return found
}

// TestMemoryPressure gives all pods 600 MiB and lets one of them take 50 MiB a
// second. It must be evicted, alone, before the kernel has to kill anything.
func TestMemoryPressure(t *testing.T) {
	c := kit.NewCluster(t)
	c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, fmt.Sprintf(`
systemReserved: {memory: %dMi}
evictionHard: {memory.available: %dMi}
evictionPressureTransitionPeriod: 3s
`, hostMemory(t)/kit.MiB-roomForPods, memoryThreshold)))
	c.Up()
	pods := c.PodsCgroup()
	c.Apply(kit.ToolboxPod("calm", "pause", "    resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}\n") +
		kit.ToolboxPod("modest", "hog 100", "    resources: {requests: {memory: 150Mi}}\n"))
	c.WaitReady("default", "", 3)
	c.Apply(kit.ToolboxPod("hog", fmt.Sprintf("hog 4000 %d", hogRate), ""))
	hog := evicted(c, "hog")
	if kills := oomKills(t, pods); kills != 0 {
		t.Errorf("the kernel killed %d times first", kills)
	}
	// On cgroup v1 the hog's own kills went with its cgroup; its end tells.
	if end := hog.Status.ContainerStatuses[0].State.Terminated; end != nil && end.Reason == "OOMKilled" {
		t.Errorf("the kernel ended the hog: %+v", end)
	}
	parts := regexp.MustCompile(`^The node was low on resource: memory\. Threshold quantity: 100Mi, available: (\S+)\. Container main ` +
		`was using (\S+), request is 0, has larger consumption of memory\. $`).
		FindStringSubmatch(hog.Status.Message)
	if hog.Status.Reason != "Evicted" || parts == nil {
		t.Fatalf("status is %s %q", hog.Status.Reason, hog.Status.Message)
	}
	// The hog's pace turns bytes below the threshold into time since the crossing.
	left := resource.MustParse(parts[1])
	if least := int64(memoryThreshold-hogRate) * kit.MiB; left.Value() < least {
		t.Errorf("noticed with %s left, which is more than a second late", left.String())
	}
	t.Logf("noticed with %s of %d MiB left, %d ms after the crossing", left.String(), memoryThreshold,
		(memoryThreshold*kit.MiB-left.Value())*1000/int64(hogRate*kit.MiB))
	if !kit.Disrupted(hog) {
		t.Errorf("no condition DisruptionTarget: %+v", hog.Status.Conditions)
	}
	event := waitEvent(c, "Pod", "hog", "Evicted")
	if event.Message != hog.Status.Message || event.Annotations["starved_resource"] != "memory" ||
		event.Annotations["offending_containers"] != "main" {
		t.Errorf("event is %q %v", event.Message, event.Annotations)
	}
	if e := waitEvent(c, "Node", "", "EvictionThresholdMet"); e.Message != "Attempting to reclaim memory" || e.Type != v1.EventTypeWarning {
		t.Errorf("event on the node is %s %q", e.Type, e.Message)
	}
	waitEvent(c, "Node", "", "NodeHasInsufficientMemory")
	if story := c.Berth("why", "node", hog.Spec.NodeName, "--data-dir", c.Dir); !strings.Contains(story, "evicted pod default/hog") ||
		!strings.Contains(story, "signal: ") {
		t.Errorf("berth why node does not tell of the eviction:\n%s", story)
	}
	c.Eventually("the shortage ends", func() (bool, string) {
		cond := nodeCondition(c, v1.NodeMemoryPressure)
		return cond != nil && cond.Status == v1.ConditionFalse && cond.Reason == "KubeletHasSufficientMemory", fmt.Sprint(cond)
	})
	for _, name := range []string{"calm", "modest"} {
		if pods := c.Pods("default", "app="+name); len(pods) != 1 || !kit.PodReady(&pods[0]) {
			t.Errorf("%s did not survive: %v", name, pods)
		}
	}
}

func hostMemory(t *testing.T) int64 {
	t.Helper()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// smallDisk mounts a file system of its own size and returns a directory on it.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: mounting needs root")
	}
	mount, err := os.MkdirTemp("", "bd")
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "disk")
	file, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	file.Close()
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, mount}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("unmounting: %v\n%s", err, out)
		}
		os.Remove(mount)
	})
	return filepath.Join(mount, "d")
}

// ballastImage adds an image that nothing uses to the usual ones.
func ballastImage(t *testing.T, bin string, size int64) string {
	t.Helper()
	dir, ballast := t.TempDir(), filepath.Join(t.TempDir(), "ballast")
	data := make([]byte, size)
	rand.Read(data) // so that no compression makes it small
	if err := os.WriteFile(ballast, data, 0o600); err != nil {
		t.Fatal(err)
	}
	usual, err := filepath.Glob(filepath.Join(bin, "images", "*.tar"))
	if err != nil || len(usual) == 0 {
		t.Fatalf("no images in %s: %v", bin, err)
	}
	for _, file := range usual {
		if err := os.Symlink(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(filepath.Join(bin, "mkimage"), "-out", filepath.Join(dir, "ballast.tar"), "-name", "berth.dev/ballast:test",
		"-entrypoint", "/ballast", "-file", "/ballast="+ballast).CombinedOutput()
	if err != nil {
		t.Fatalf("making the image: %v\n%s", err, out)
	}
	return dir
}

// TestDiskPressure runs a node on a disk of 1.5 GiB. Limits of pods hold
// whatever there is left; a shortage is met by removing an unused image, and
// only the next one by ending the pod that stores most.
func TestDiskPressure(t *testing.T) {
	dir := smallDisk(t, 1536*kit.MiB)
	c := kit.NewCluster(t)
	if err := os.Remove(c.Dir); err != nil {
		t.Fatal(err)
	}
	c.Dir = dir
	c.Flags = append(c.Flags, "--images-dir", ballastImage(t, c.Bin, 150*kit.MiB), "--agent-config", kit.AgentConfig(t, `
evictionHard: {nodefs.available: 400Mi, imagefs.available: 400Mi}
evictionPressureTransitionPeriod: 3s
imageMinimumGCAge: 1s
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
volumeStatsAggPeriod: 5s
`))
	c.Up()
	testLocalLimits(t, c)
	if t.Failed() {
		return
	}
	volume := "    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {}}]\n"
	c.Apply(kit.ToolboxPod("calm", "pause", ""))
	c.WaitReady("default", "app=calm", 1)
	// A little below the threshold: the image alone is enough.
	c.Apply(kit.ToolboxPod("writer", fmt.Sprintf("fill /data/a %d; pause", free(c)/kit.MiB-350), volume))
	if e := waitEvent(c, "Node", "", "EvictionThresholdMet"); e.Message != "Attempting to reclaim ephemeral-storage" {
		t.Errorf("event on the node is %q", e.Message)
	}
	waitEvent(c, "Node", "", "NodeHasDiskPressure")
	if e := waitEvent(c, "Node", "", "FreedDiskSpace"); !strings.HasPrefix(e.Message, "Removed 1 unused images") {
		t.Errorf("event on the node is %q", e.Message)
	}
	c.Eventually("the shortage ends", func() (bool, string) {
		cond := nodeCondition(c, v1.NodeDiskPressure)
		return cond != nil && cond.Status == v1.ConditionFalse && cond.Reason == "KubeletHasNoDiskPressure", fmt.Sprint(cond)
	})
	for _, name := range []string{"calm", "writer"} {
		if pods := c.Pods("default", "app="+name); len(pods) != 1 || !kit.PodReady(&pods[0]) {
			t.Fatalf("%s was ended although an image could go: %v", name, pods)
		}
	}
	// Nothing is left to remove now. The pod may end before the command does.
	if out, err := c.TryKubectl("", "exec", "writer", "--", "fill", "/data/b", strconv.FormatInt(free(c)/kit.MiB-350, 10)); err != nil {
		t.Logf("filling the disk: %v: %s", err, out)
	}
	writer := evicted(c, "writer")
	if !regexp.MustCompile(`^The node was low on resource: ephemeral-storage\. Threshold quantity: 400Mi, available: \S+\. Container `+
		`main was using \S+, request is 0, has larger consumption of ephemeral-storage\. $`).
		MatchString(writer.Status.Message) || writer.Status.Reason != "Evicted" || !kit.Disrupted(writer) {
		t.Errorf("status is %s %q %v", writer.Status.Reason, writer.Status.Message, writer.Status.Conditions)
	}
	if pods := c.Pods("default", "app=calm"); len(pods) != 1 || !kit.PodReady(&pods[0]) {
		t.Errorf("calm did not survive: %v", pods)
	}
}

// free is how much the cluster's disk has left.
func free(c *kit.Cluster) int64 {
	c.T.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(c.Dir, &st); err != nil {
		c.T.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// testLocalLimits lets pods break each of the limits on what they store.
func testLocalLimits(t *testing.T, c *kit.Cluster) {
	limit := "    resources: {limits: {ephemeral-storage: 10Mi}}\n"
	var all bytes.Buffer
	all.WriteString(kit.ToolboxPod("volume", "fill /data/a 20; pause",
		"    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {sizeLimit: 10Mi}}]\n"))
	all.WriteString(kit.ToolboxPod("layer", "fill /a 20; pause", limit+
		"  - name: other\n    image: berth.dev/toolbox:1\n    command: [pause]\n    resources: {limits: {ephemeral-storage: 100Mi}}\n"))
	all.WriteString(kit.ToolboxPod("whole", "fill /data/a 20; pause", limit+
		"    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {}}]\n"))
	c.Apply(all.String())
	for name, want := range map[string]string{
		"volume": `Usage of EmptyDir volume "data" exceeds the limit "10Mi". `,
		"layer":  `Container main exceeded its local ephemeral storage limit "10Mi". `,
		"whole":  "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
	} {
		pod := evicted(c, name)
		if pod.Status.Reason != "Evicted" || pod.Status.Message != want || kit.Disrupted(pod) {
			t.Errorf("%s: status is %s %q %v", name, pod.Status.Reason, pod.Status.Message, pod.Status.Conditions)
		}
		waitEvent(c, "Pod", name, "Evicted")
	}
	c.Kubectl("delete", "pod", "volume", "layer", "whole")
}
