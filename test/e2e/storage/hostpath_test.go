package storage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestHostpathDriver takes a volume of upstream's own hostpath driver, with
// upstream's provisioner, attacher and resizer, through its life: provisioned
// late, attached, staged, published, grown, restarted under, and gone.
func TestHostpathDriver(t *testing.T) {
	kit.OnlyInAll(t, "100 s; builds CSI programs")
	c := kit.NewCluster(t)
	tools := buildTools(t)
	hostpath := kit.Tools{Module: "hostpath"}.Build(t, "./registrar", "github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin")
	provisioner := kit.Tools{Module: "provisioner"}.Build(t, "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner")
	c.Up()
	node := c.NodeName()
	const driver = "hostpath.csi.k8s.io"
	socket := filepath.Join(c.Dir, "agent", "plugins", driver, "csi.sock")
	kit.Must(t, os.MkdirAll(filepath.Dir(socket), 0o750))
	config := "--kubeconfig=" + filepath.Join(c.Dir, "admin.kubeconfig")
	state := t.TempDir()
	kit.StartTool(t, filepath.Join(hostpath, "hostpathplugin"), "--endpoint=unix://"+socket, "--nodeid="+node, "--statedir="+state,
		"--enable-attach",
		"--drivername="+driver)
	kit.StartTool(t, filepath.Join(hostpath, "registrar"), "--endpoint="+socket, "--register="+filepath.Join(c.Dir, "agent",
		"plugins_registry",
		"upstream.sock"))
	kit.StartTool(t, filepath.Join(provisioner, "csi-provisioner"), "--csi-address="+socket, config, "--feature-gates=Topology=true",
		"--node-deployment=false")
	kit.StartTool(t, filepath.Join(tools, "csi-attacher"), "--csi-address="+socket, config)
	kit.StartTool(t, filepath.Join(tools, "csi-resizer"), "--csi-address="+socket, config)
	c.Kubectl("apply", "-f", filepath.Join("testdata", "hostpath.yaml"))
	user := c.WaitReady("default", "app=user", 1)[0]
	for command, want := range map[string]string{"cat /data/f": "kept", "stat /data": " 4321 ", "cat /inline/made": "here"} {
		if got := c.Kubectl(append([]string{"exec", "user", "--"}, strings.Fields(command)...)...); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if got := c.Kubectl("exec", "user", "--", "ls", "-l", "/dev/raw0"); !strings.HasPrefix(got, "D") && !strings.HasPrefix(got, "b") {
		t.Errorf("/dev/raw0 is no block device: %s", got)
	}
	c.Kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	c.Eventually("the claim has 20Mi", func() (bool, string) {
		got := c.Kubectl("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage} {.status.conditions}")
		return strings.TrimSpace(got) == "20Mi", got
	})

	kit.KillProcess(t, c.PID())
	c.MustUp(t)
	if got := c.Kubectl("exec", "user", "--", "cat", "/data/f"); !strings.Contains(got, "kept") {
		t.Errorf("after kill -9 the volume holds %q", got)
	}
	c.WaitReady("default", "app=user", 1)
	c.Kubectl("delete", "pod", user.Name, "--wait")
	manifest, err := os.ReadFile(filepath.Join("testdata", "hostpath.yaml"))
	kit.Must(t, err)
	c.Apply(string(manifest[strings.LastIndex(string(manifest), "---"):]))
	c.WaitReady("default", "app=user", 1)
	if got := c.Kubectl("exec", "user", "--", "cat", "/data/f"); strings.Count(got, "kept") != 2 {
		t.Errorf("a second pod sees %q in the volume, want both lines", got)
	}

	c.Kubectl("delete", "pod", "user", "--wait")
	c.Kubectl("delete", "pvc", "--all", "--wait")
	c.Eventually("attachments and volumes are gone", func() (bool, string) {
		attachments, err1 := c.Client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
		volumes, err2 := c.Client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
		if err1 != nil || err2 != nil {
			return false, fmt.Sprint(err1, err2)
		}
		return len(attachments.Items)+len(volumes.Items) == 0, fmt.Sprintf("%d attachments, %d volumes", len(attachments.Items),
			len(volumes.Items))
	})
	left, err := exec.Command("losetup", "--list", "--noheadings", "--output", "BACK-FILE").CombinedOutput()
	if err != nil || strings.Contains(string(left), state) {
		t.Errorf("loop devices left: %s, %v", left, err)
	}
}
