package e2e

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
)

const csiDriver = "hostpath.csi.berth.dev"

// TestCSI follows volumes of a CSI driver through their life on a real
// cluster: the driver is ours (test/tools/csihostpath) and first has to pass
// the project's own sanity suite; the attacher and the resizer are upstream's.
func TestCSI(t *testing.T) {
	c := newCluster(t)
	tools := buildTools(t)
	step := func(name string, f func(t *testing.T)) {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			c.t = t
			defer func() { c.t = t }()
			f(t)
		})
	}
	defer func() { c.t = t }()
	step("the driver passes csi-sanity", func(t *testing.T) { sane(t, tools) })
	c.up()
	node := c.nodeName()
	d := startDriver(t, c, tools, node)
	step("registration reaches the CSINode and the Node", func(t *testing.T) { testRegistration(t, c, node) })
	step("volumes reach a pod", func(t *testing.T) { testVolumes(t, c) })
	step("numbers of volumes", func(t *testing.T) { testVolumeNumbers(t, c, node) })
	step("volumes grow under a running pod", func(t *testing.T) { testGrowth(t, c) })
	step("kill -9 of berth keeps volumes", func(t *testing.T) {
		pid := c.containerPIDs()
		kill(t, c.pid())
		c.mustUp(t)
		if now := c.containerPIDs(); len(subset(now, pid)) != len(pid) {
			t.Errorf("containers %v, before the crash %v", now, pid)
		}
		if got := c.kubectl("exec", "user", "--", "cat", "/data/f"); got != "kept\n" {
			t.Errorf("the volume holds %q", got)
		}
	})
	step("a node that is full fails the pod by name", func(t *testing.T) { testAttachLimit(t, c) })
	step("nothing is left", func(t *testing.T) { testTearDown(t, c, d) })
}

// buildTools compiles the driver and the upstream tools it works with.
func buildTools(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	buildIn(t, filepath.Join("..", "tools"), dir, "./csihostpath", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
		"github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer")
	return dir
}

// buildIn compiles packages of a module of test tools into a directory.
func buildIn(t *testing.T, module, dir string, packages ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-ldflags=-X main.version=test", "-o", dir + "/"}, packages...)...)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building tools of %s: %v\n%s", module, err, out)
	}
}

// start runs a tool until the test ends; its output is shown if that failed.
func start(t *testing.T, tool string, args ...string) {
	t.Helper()
	name := filepath.Base(tool)
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("--- %s\n%s", name, text)
		}
	})
}

func sane(t *testing.T, tools string) {
	dir, err := os.MkdirTemp("", "sane") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "csi.sock")
	start(t, filepath.Join(tools, "csihostpath"), "--node-id=n", "--endpoint="+socket, "--state-dir="+filepath.Join(dir, "state"),
		"--topology=zone=a", "--max-volumes=5")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

func (c *cluster) nodeName() string {
	c.t.Helper()
	return c.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
}

// startDriver runs the driver and its sidecars for a cluster and returns where
// it keeps volumes.
func startDriver(t *testing.T, c *cluster, tools, node string) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	socket := filepath.Join(c.dir, "agent", "plugins", csiDriver, "csi.sock")
	config := filepath.Join(c.dir, "admin.kubeconfig")
	start(t, filepath.Join(tools, "csihostpath"), "--node-id="+node, "--endpoint="+socket, "--state-dir="+state, "--max-volumes=3",
		"--topology=topology.hostpath/node="+node, "--register="+filepath.Join(c.dir, "agent", "plugins_registry", "hostpath.sock"),
		"--kubeconfig="+config)
	start(t, filepath.Join(tools, "csi-attacher"), "--csi-address="+socket, "--kubeconfig="+config)
	start(t, filepath.Join(tools, "csi-resizer"), "--csi-address="+socket, "--kubeconfig="+config)
	return state
}

func testRegistration(t *testing.T, c *cluster, node string) {
	c.eventually("the driver in the CSINode", func() (bool, string) {
		n, err := c.client.StorageV1().CSINodes().Get(context.Background(), node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == csiDriver {
				ok := d.NodeID == node && len(d.TopologyKeys) == 1 && d.TopologyKeys[0] == "topology.hostpath/node" &&
					d.Allocatable != nil && *d.Allocatable.Count == 3
				return ok, fmt.Sprint(d)
			}
		}
		return false, fmt.Sprint(n.Spec.Drivers)
	})
	n, err := c.client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Labels["topology.hostpath/node"] != node || !strings.Contains(n.Annotations["csi.volume.kubernetes.io/nodeid"], csiDriver) {
		t.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
	}
}

func testVolumes(t *testing.T, c *cluster) {
	c.kubectl("apply", "-f", filepath.Join("testdata", "csi.yaml"))
	user := c.waitReady("default", "app=user", 1)[0]
	for _, look := range []struct{ want, command string }{
		{" 4321 ", "stat /data"}, // fsGroup
		{"kept", "cat /data/f"},
		{"default/user", "cat /inline/pod"}, // podInfoOnMount
		{"hostpath", "cat /inline/tokens"},  // tokenRequests
	} {
		got := c.kubectl(append([]string{"exec", "user", "--"}, strings.Fields(look.command)...)...)
		if !strings.Contains(got, look.want) {
			t.Errorf("%s: %q, want %q", look.command, got, look.want)
		}
	}
	if got := c.kubectl("exec", "user", "--", "ls", "-l", "/dev/raw0"); !strings.HasPrefix(got, "D") && !strings.HasPrefix(got, "b") {
		t.Errorf("/dev/raw0 is no block device: %s", got)
	}
	list, err := c.client.CoreV1().Events("default").List(context.Background(),
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

func testVolumeNumbers(t *testing.T, c *cluster, node string) {
	want := fmt.Sprintf(`kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="data"} %v`, 1.048576e+07)
	c.eventually(want, func() (bool, string) {
		out, err := c.tryKubectl("", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics")
		return err == nil && strings.Contains(out, want), ""
	})
	summary := c.kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary")
	if !strings.Contains(strings.ReplaceAll(summary, " ", ""), `"capacityBytes":10485760`) || !strings.Contains(summary, `"pvcRef"`) {
		t.Errorf("the summary lacks what the driver says:\n%s", summary)
	}
}

func testGrowth(t *testing.T, c *cluster) {
	for _, claim := range []string{"data", "raw"} {
		c.kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	}
	c.eventually("both claims at 20Mi", func() (bool, string) {
		sizes := ""
		for _, name := range []string{"data", "raw"} {
			claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{})
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
func testAttachLimit(t *testing.T, c *cluster) {
	manifest, err := os.ReadFile(filepath.Join("testdata", "csi-limit.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(strings.ReplaceAll(string(manifest), "NODE", c.nodeName()), "# beyond the limit\n")
	c.apply(first)
	c.waitReady("default", "app=last", 1)
	c.apply(second)
	c.eventually("the pod beyond the limit fails", func() (bool, string) {
		p, err := c.client.CoreV1().Pods("default").Get(context.Background(), "beyond-2", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return p.Status.Phase == v1.PodFailed && p.Status.Reason == "VolumeAttachmentLimitExceeded", string(p.Status.Phase) + " " +
			p.Status.Reason + " " + p.Status.Message
	})
	c.told("beyond-2", "FailedAttachVolume", "AttachVolume.Attach failed for volume ")
}

func testTearDown(t *testing.T, c *cluster, state string) {
	c.kubectl("delete", "pod", "--all", "--wait")
	c.kubectl("delete", "pvc", "--all", "--wait")
	c.eventually("no attachments, volumes or data", func() (bool, string) {
		attachments, err1 := c.client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
		volumes, err2 := c.client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
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
		if strings.Contains(line, c.dir) && strings.Contains(line, "csi") {
			t.Errorf("still mounted: %s", line)
		}
	}
	staged, err := os.ReadDir(filepath.Join(c.dir, "agent", "plugins", "kubernetes.io", "csi", csiDriver))
	if err != nil || len(staged) != 0 {
		t.Errorf("staging directories: %v, %v", staged, err)
	}
}
