package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHostpathDriver takes a volume of upstream's own hostpath driver, with
// upstream's provisioner, attacher and resizer, through its life: provisioned
// late, attached, staged, published, grown, restarted under, and gone.
func TestHostpathDriver(t *testing.T) {
	c := newCluster(t)
	tools := buildTools(t)
	for module, packages := range map[string][]string{
		"hostpath":    {"./registrar", "github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin"},
		"provisioner": {"github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"},
	} {
		buildIn(t, filepath.Join("..", "tools", module), tools, packages...)
	}
	c.up()
	node := c.nodeName()
	const driver = "hostpath.csi.k8s.io"
	socket := filepath.Join(c.dir, "agent", "plugins", driver, "csi.sock")
	must(t, os.MkdirAll(filepath.Dir(socket), 0o750))
	config := "--kubeconfig=" + filepath.Join(c.dir, "admin.kubeconfig")
	state := t.TempDir()
	start(t, filepath.Join(tools, "hostpathplugin"), "--endpoint=unix://"+socket, "--nodeid="+node, "--statedir="+state, "--enable-attach",
		"--drivername="+driver)
	start(t, filepath.Join(tools, "registrar"), "--endpoint="+socket, "--register="+filepath.Join(c.dir, "agent", "plugins_registry",
		"upstream.sock"))
	start(t, filepath.Join(tools, "csi-provisioner"), "--csi-address="+socket, config, "--feature-gates=Topology=true",
		"--node-deployment=false")
	start(t, filepath.Join(tools, "csi-attacher"), "--csi-address="+socket, config)
	start(t, filepath.Join(tools, "csi-resizer"), "--csi-address="+socket, config)
	c.kubectl("apply", "-f", filepath.Join("testdata", "hostpath.yaml"))
	user := c.waitReady("default", "app=user", 1)[0]
	for command, want := range map[string]string{"cat /data/f": "kept", "stat /data": " 4321 ", "cat /inline/made": "here"} {
		if got := c.kubectl(append([]string{"exec", "user", "--"}, strings.Fields(command)...)...); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if got := c.kubectl("exec", "user", "--", "ls", "-l", "/dev/raw0"); !strings.HasPrefix(got, "D") && !strings.HasPrefix(got, "b") {
		t.Errorf("/dev/raw0 is no block device: %s", got)
	}
	c.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"20Mi"}}}}`)
	c.eventually("the claim has 20Mi", func() (bool, string) {
		got := c.kubectl("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage} {.status.conditions}")
		return strings.TrimSpace(got) == "20Mi", got
	})

	kill(t, c.pid())
	c.mustUp(t)
	if got := c.kubectl("exec", "user", "--", "cat", "/data/f"); !strings.Contains(got, "kept") {
		t.Errorf("after kill -9 the volume holds %q", got)
	}
	c.waitReady("default", "app=user", 1)
	c.kubectl("delete", "pod", user.Name, "--wait")
	manifest, err := os.ReadFile(filepath.Join("testdata", "hostpath.yaml"))
	must(t, err)
	c.apply(string(manifest[strings.LastIndex(string(manifest), "---"):]))
	c.waitReady("default", "app=user", 1)
	if got := c.kubectl("exec", "user", "--", "cat", "/data/f"); strings.Count(got, "kept") != 2 {
		t.Errorf("a second pod sees %q in the volume, want both lines", got)
	}

	c.kubectl("delete", "pod", "user", "--wait")
	c.kubectl("delete", "pvc", "--all", "--wait")
	c.eventually("attachments and volumes are gone", func() (bool, string) {
		attachments, err1 := c.client.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
		volumes, err2 := c.client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
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
