package e2e

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
)

const (
	mib = 1 << 20
	// roomForPods is what the node of the memory test has for pods.
	roomForPods, memoryThreshold = 600, 100
)

// hogRate is what the hog takes of it per second, in MiB.
var hogRate = 50 / testtimeout.Multiplier

// agentConfig writes a KubeletConfiguration with further fields.
func agentConfig(t *testing.T, fields string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + fields
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func toolboxPod(name, command, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: berth.dev/toolbox:1
    command: [sh, -c, %q]
%s---`, name, name, command, more)
}

// evicted waits until the node has ended a pod and returns it.
func (c *cluster) evicted(name string) *v1.Pod {
	c.t.Helper()
	var pod *v1.Pod
	c.eventually("eviction of "+name, func() (bool, string) {
		var err error
		if pod, err = c.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		return pod.Status.Phase == v1.PodFailed, describe(pod) + " " + pod.Status.Reason + " " + pod.Status.Message
	})
	return pod
}

func (c *cluster) nodeCondition(kind v1.NodeConditionType) *v1.NodeCondition {
	c.t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		c.t.Fatalf("listing nodes: %v", err)
	}
	for i := range nodes.Items[0].Status.Conditions {
		if nodes.Items[0].Status.Conditions[i].Type == kind {
			return &nodes.Items[0].Status.Conditions[i]
		}
	}
	return nil
}

// waitEvent waits for an event and returns its message.
func (c *cluster) waitEvent(kind, name, reason string) *v1.Event {
	c.t.Helper()
	var found *v1.Event
	c.eventually(fmt.Sprintf("event %s on %s %s", reason, kind, name), func() (bool, string) {
		list, err := c.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{FieldSelector: "reason=" + reason})
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

func disrupted(p *v1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.DisruptionTarget && cond.Status == v1.ConditionTrue && cond.Reason == v1.PodReasonTerminationByKubelet {
			return true
		}
	}
	return false
}

// TestMemoryPressure gives all pods 600 MiB and lets one of them take 50 MiB a
// second. It must be evicted, alone, before the kernel has to kill anything.
func TestMemoryPressure(t *testing.T) {
	c := newCluster(t)
	c.extra = append(c.extra, "--agent-config", agentConfig(t, fmt.Sprintf(`
systemReserved: {memory: %dMi}
evictionHard: {memory.available: %dMi}
evictionPressureTransitionPeriod: 3s
`, machineMemory(t)/mib-roomForPods, memoryThreshold)))
	c.up()
	pods := c.podsCgroup()
	c.apply(toolboxPod("calm", "pause", "    resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}\n") +
		toolboxPod("modest", "hog 100", "    resources: {requests: {memory: 150Mi}}\n"))
	c.waitReady("default", "", 3)
	c.apply(toolboxPod("hog", fmt.Sprintf("hog 4000 %d", hogRate), ""))
	hog := c.evicted("hog")
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
	if least := int64(memoryThreshold-hogRate) * mib; left.Value() < least {
		t.Errorf("noticed with %s left, which is more than a second late", left.String())
	}
	t.Logf("noticed with %s of %d MiB left, %d ms after the crossing", left.String(), memoryThreshold,
		(memoryThreshold*mib-left.Value())*1000/int64(hogRate*mib))
	if !disrupted(hog) {
		t.Errorf("no condition DisruptionTarget: %+v", hog.Status.Conditions)
	}
	event := c.waitEvent("Pod", "hog", "Evicted")
	if event.Message != hog.Status.Message || event.Annotations["starved_resource"] != "memory" ||
		event.Annotations["offending_containers"] != "main" {
		t.Errorf("event is %q %v", event.Message, event.Annotations)
	}
	if e := c.waitEvent("Node", "", "EvictionThresholdMet"); e.Message != "Attempting to reclaim memory" || e.Type != v1.EventTypeWarning {
		t.Errorf("event on the node is %s %q", e.Type, e.Message)
	}
	c.waitEvent("Node", "", "NodeHasInsufficientMemory")
	if story := c.berth("why", "node", hog.Spec.NodeName, "--data-dir", c.dir); !strings.Contains(story, "evicted pod default/hog") ||
		!strings.Contains(story, "signal: ") {
		t.Errorf("berth why node does not tell of the eviction:\n%s", story)
	}
	c.eventually("the shortage ends", func() (bool, string) {
		cond := c.nodeCondition(v1.NodeMemoryPressure)
		return cond != nil && cond.Status == v1.ConditionFalse && cond.Reason == "KubeletHasSufficientMemory", fmt.Sprint(cond)
	})
	for _, name := range []string{"calm", "modest"} {
		if pods := c.pods("default", "app="+name); len(pods) != 1 || !podReady(&pods[0]) {
			t.Errorf("%s did not survive: %v", name, pods)
		}
	}
}

func machineMemory(t *testing.T) int64 {
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
	dir := smallDisk(t, 1536*mib)
	c := newCluster(t)
	if err := os.Remove(c.dir); err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	c.extra = append(c.extra, "--images-dir", ballastImage(t, c.bin, 150*mib), "--agent-config", agentConfig(t, `
evictionHard: {nodefs.available: 400Mi, imagefs.available: 400Mi}
evictionPressureTransitionPeriod: 3s
imageMinimumGCAge: 1s
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
volumeStatsAggPeriod: 5s
`))
	c.up()
	testLocalLimits(t, c)
	if t.Failed() {
		return
	}
	volume := "    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {}}]\n"
	c.apply(toolboxPod("calm", "pause", ""))
	c.waitReady("default", "app=calm", 1)
	// A little below the threshold: the image alone is enough.
	c.apply(toolboxPod("writer", fmt.Sprintf("fill /data/a %d; pause", c.free()/mib-350), volume))
	if e := c.waitEvent("Node", "", "EvictionThresholdMet"); e.Message != "Attempting to reclaim ephemeral-storage" {
		t.Errorf("event on the node is %q", e.Message)
	}
	c.waitEvent("Node", "", "NodeHasDiskPressure")
	if e := c.waitEvent("Node", "", "FreedDiskSpace"); !strings.HasPrefix(e.Message, "Removed 1 unused images") {
		t.Errorf("event on the node is %q", e.Message)
	}
	c.eventually("the shortage ends", func() (bool, string) {
		cond := c.nodeCondition(v1.NodeDiskPressure)
		return cond != nil && cond.Status == v1.ConditionFalse && cond.Reason == "KubeletHasNoDiskPressure", fmt.Sprint(cond)
	})
	for _, name := range []string{"calm", "writer"} {
		if pods := c.pods("default", "app="+name); len(pods) != 1 || !podReady(&pods[0]) {
			t.Fatalf("%s was ended although an image could go: %v", name, pods)
		}
	}
	// Nothing is left to remove now. The pod may end before the command does.
	if out, err := c.tryKubectl("", "exec", "writer", "--", "fill", "/data/b", strconv.FormatInt(c.free()/mib-350, 10)); err != nil {
		t.Logf("filling the disk: %v: %s", err, out)
	}
	writer := c.evicted("writer")
	if !regexp.MustCompile(`^The node was low on resource: ephemeral-storage\. Threshold quantity: 400Mi, available: \S+\. Container `+
		`main was using \S+, request is 0, has larger consumption of ephemeral-storage\. $`).
		MatchString(writer.Status.Message) || writer.Status.Reason != "Evicted" || !disrupted(writer) {
		t.Errorf("status is %s %q %v", writer.Status.Reason, writer.Status.Message, writer.Status.Conditions)
	}
	if pods := c.pods("default", "app=calm"); len(pods) != 1 || !podReady(&pods[0]) {
		t.Errorf("calm did not survive: %v", pods)
	}
}

// free is how much the cluster's disk has left.
func (c *cluster) free() int64 {
	c.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(c.dir, &st); err != nil {
		c.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// testLocalLimits lets pods break each of the limits on what they store.
func testLocalLimits(t *testing.T, c *cluster) {
	limit := "    resources: {limits: {ephemeral-storage: 10Mi}}\n"
	var all bytes.Buffer
	all.WriteString(toolboxPod("volume", "fill /data/a 20; pause",
		"    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {sizeLimit: 10Mi}}]\n"))
	all.WriteString(toolboxPod("layer", "fill /a 20; pause", limit+
		"  - name: other\n    image: berth.dev/toolbox:1\n    command: [pause]\n    resources: {limits: {ephemeral-storage: 100Mi}}\n"))
	all.WriteString(toolboxPod("whole", "fill /data/a 20; pause", limit+
		"    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {}}]\n"))
	c.apply(all.String())
	for name, want := range map[string]string{
		"volume": `Usage of EmptyDir volume "data" exceeds the limit "10Mi". `,
		"layer":  `Container main exceeded its local ephemeral storage limit "10Mi". `,
		"whole":  "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
	} {
		pod := c.evicted(name)
		if pod.Status.Reason != "Evicted" || pod.Status.Message != want || disrupted(pod) {
			t.Errorf("%s: status is %s %q %v", name, pod.Status.Reason, pod.Status.Message, pod.Status.Conditions)
		}
		c.waitEvent("Pod", name, "Evicted")
	}
	c.kubectl("delete", "pod", "volume", "layer", "whole")
}
