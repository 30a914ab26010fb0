package storage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestCSI follows volumes of a CSI driver through their life on a real
// cluster: the driver is ours (test/tools/csihostpath) and first has to pass
// the project's own sanity suite; the attacher and the resizer are upstream's.
func TestCSI(t *testing.T) {
	kit.OnlyInAll(t, "89 s; builds CSI programs")
	c := kit.NewCluster(t)
	tools := buildTools(t)
	step := func(name string, f func(t *testing.T)) {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			c.T = t
			defer func() { c.T = t }()
			f(t)
		})
	}
	defer func() { c.T = t }()
	step("the driver passes csi-sanity", func(t *testing.T) { sane(t, tools) })
	c.Up()
	node := c.NodeName()
	d := startDriver(t, c, tools, node)
	step("registration reaches the CSINode and the Node", func(t *testing.T) { testRegistration(t, c, node) })
	step("volumes reach a pod", func(t *testing.T) { testVolumes(t, c) })
	step("numbers of volumes", func(t *testing.T) { testVolumeNumbers(t, c, node) })
	step("volumes grow under a running pod", func(t *testing.T) { testGrowth(t, c) })
	step("kill -9 of berth keeps volumes", func(t *testing.T) {
		pid := c.ContainerPIDs()
		kit.KillProcess(t, c.PID())
		c.MustUp(t)
		if now := c.ContainerPIDs(); len(kit.Subset(now, pid)) != len(pid) {
			t.Errorf("containers %v, before the crash %v", now, pid)
		}
		if got := c.Kubectl("exec", "user", "--", "cat", "/data/f"); got != "kept\n" {
			t.Errorf("the volume holds %q", got)
		}
	})
	step("a node that is full fails the pod by name", func(t *testing.T) { testAttachLimit(t, c) })
	step("nothing is left", func(t *testing.T) { testTearDown(t, c, d) })
}

// buildTools compiles the driver and the upstream tools it works with.
func buildTools(t *testing.T) string {
	t.Helper()
	return kit.Tools{}.Build(t, "./csihostpath", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
		"github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer")
}

func sane(t *testing.T, tools string) {
	dir, err := os.MkdirTemp("", "sane") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "csi.sock")
	kit.StartTool(t, filepath.Join(tools, "csihostpath"), "--node-id=n", "--endpoint="+socket, "--state-dir="+filepath.Join(dir, "state"),
		"--topology=zone=a", "--max-volumes=5")
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(tools, "csi-sanity"), "--csi.endpoint="+socket,
		"--csi.mountdir="+filepath.Join(dir, "mount"), "--csi.stagingdir="+filepath.Join(dir, "stage"),
		"--ginkgo.no-color").CombinedOutput()
	if err != nil {
		t.Fatalf("csi-sanity: %v\n%s", err, out)
	}
	t.Log(lastLine(string(out)))
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// startDriver runs the driver and its sidecars for a cluster and returns where
// it keeps volumes.
func startDriver(t *testing.T, c *kit.Cluster, tools, node string) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	socket := filepath.Join(c.Dir, "agent", "plugins", kit.CSIDriver, "csi.sock")
	config := filepath.Join(c.Dir, "admin.kubeconfig")
	kit.StartTool(t, filepath.Join(tools, "csihostpath"), "--node-id="+node, "--endpoint="+socket, "--state-dir="+state, "--max-volumes=3",
		"--topology=topology.hostpath/node="+node, "--register="+filepath.Join(c.Dir, "agent", "plugins_registry", "hostpath.sock"),
		"--kubeconfig="+config)
	kit.StartTool(t, filepath.Join(tools, "csi-attacher"), "--csi-address="+socket, "--kubeconfig="+config)
	kit.StartTool(t, filepath.Join(tools, "csi-resizer"), "--csi-address="+socket, "--kubeconfig="+config)
	return state
}

func testRegistration(t *testing.T, c *kit.Cluster, node string) {
	c.Eventually("the driver in the CSINode", func() (bool, string) {
		n, err := c.Client.StorageV1().CSINodes().Get(context.Background(), node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == kit.CSIDriver {
				ok := d.NodeID == node && len(d.TopologyKeys) == 1 && d.TopologyKeys[0] == "topology.hostpath/node" &&
					d.Allocatable != nil && *d.Allocatable.Count == 3
				return ok, fmt.Sprint(d)
			}
		}
		return false, fmt.Sprint(n.Spec.Drivers)
	})
	n, err := c.Client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Labels["topology.hostpath/node"] != node || !strings.Contains(n.Annotations["csi.volume.kubernetes.io/nodeid"], kit.CSIDriver) {
		t.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
	}
}

func testVolumes(t *testing.T, c *kit.Cluster) {
	c.Kubectl("apply", "-f", filepath.Join("testdata", "csi.yaml"))
	user := c.WaitReady("default", "app=user", 1)[0]
	for _, look := range []struct{ want, command string }{
		{" 4321 ", "stat /data"}, // fsGroup
		{"kept", "cat /data/f"},
		{"default/user", "cat /inline/pod"}, // podInfoOnMount
		{"hostpath", "cat /inline/tokens"},  // tokenRequests
	} {
		got := c.Kubectl(append([]string{"exec", "user", "--"}, strings.Fields(look.command)...)...)
		if !strings.Contains(got, look.want) {
			t.Errorf("%s: %q, want %q", look.command, got, look.want)
		}
	}
	if got := c.Kubectl("exec", "user", "--", "ls", "-l", "/dev/raw0"); !strings.HasPrefix(got, "D") && !strings.HasPrefix(got, "b") {
		t.Errorf("/dev/raw0 is no block device: %s", got)
	}
	list, err := c.Client.CoreV1().Events("default").List(context.Background(),
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(user.UID)})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == "FailedMount" || e.Reason == "FailedAttachVolume" {
			t.Errorf("waiting for an attachment was told as a failure: %s %s", e.Reason, e.Message)
		}
	}
}

func testVolumeNumbers(t *testing.T, c *kit.Cluster, node string) {
	want := fmt.Sprintf(`kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="data"} %v`, 1.048576e+07)
	c.Eventually(want, func() (bool, string) {
		out, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics")
		return err == nil && strings.Contains(out, want), ""
	})
	summary := c.Kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary")
	if !strings.Contains(strings.ReplaceAll(summary, " ", ""), `"capacityBytes":10485760`) || !strings.Contains(summary, `"pvcRef"`) {
		t.Errorf("the summary lacks what the driver says:\n%s", summary)
	}
}

func testGrowth(t *testing.T, c *kit.Cluster) {
	for _, claim := range []string{"data", "raw"} {
		c.Kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	}
	c.Eventually("both claims at 20Mi", func() (bool, string) {
		sizes := ""
		for _, name := range []string{"data", "raw"} {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			sizes += claim.Status.Capacity.Storage().String() + fmt.Sprint(len(claim.Status.Conditions),
				len(claim.Status.AllocatedResourceStatuses), " ")
		}
		return sizes == "20Mi0 0 20Mi0 0 ", sizes
	})
}

// testAttachLimit puts a pod with a fourth volume on the node, past the
// scheduler, which knows better.
func testAttachLimit(t *testing.T, c *kit.Cluster) {
	manifest, err := os.ReadFile(filepath.Join("testdata", "csi-limit.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(strings.ReplaceAll(string(manifest), "NODE", c.NodeName()), "# beyond the limit\n")
	c.Apply(first)
	c.WaitReady("default", "app=last", 1)
	c.Apply(second)
	c.Eventually("the pod beyond the limit fails", func() (bool, string) {
		p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), "beyond-2", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Status.Phase == v1.PodFailed && p.Status.Reason == "VolumeAttachmentLimitExceeded", string(p.Status.Phase) + " " +
			p.Status.Reason + " " + p.Status.Message
	})
	c.WaitPodEvent("beyond-2", "FailedAttachVolume", "AttachVolume.Attach failed for volume ")
}

func testTearDown(t *testing.T, c *kit.Cluster, state string) {
	c.Kubectl("delete", "pod", "--all", "--wait")
	c.Kubectl("delete", "pvc", "--all", "--wait")
	c.Eventually("no attachments, volumes or data", func() (bool, string) {
		attachments, err1 := c.Client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
		volumes, err2 := c.Client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
		data, err3 := os.ReadDir(state)
		if err1 != nil || err2 != nil || err3 != nil {
			return false, fmt.Sprint(err1, err2, err3)
		}
		return len(attachments.Items)+len(volumes.Items)+len(data) == 0, fmt.Sprintf("%d attachments, %d volumes, %v",
			len(attachments.Items), len(volumes.Items), data)
	})
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, c.Dir) && strings.Contains(line, "csi") {
			t.Errorf("still mounted: %s", line)
		}
	}
	staged, err := os.ReadDir(filepath.Join(c.Dir, "agent", "plugins", "kubernetes.io", "csi", kit.CSIDriver))
	if err != nil || len(staged) != 0 {
		t.Errorf("staging directories: %v, %v", staged, err)
	}
}
