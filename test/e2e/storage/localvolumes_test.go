package storage

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const localVolumeUser = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: image}
spec: {accessModes: [ReadWriteOncePod], storageClassName: local-image, resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 1234, runAsUser: 1000}
  containers:
  - name: main
    image: berth.dev/toolbox:1
    command: [sh, -c, "hostname > /a/who; hostname > /b/who; sleep 100000"]
    volumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /b}]
  volumes: [{name: a, persistentVolumeClaim: {claimName: data}}, {name: b, persistentVolumeClaim: {claimName: image}}]
`

// TestLocalVolumes: a claim without a class gets a volume on the node of its
// pod, the kernel holds an image to its size, volumes grow, survive a kill -9
// of berth, and leave nothing behind; the classes are the user's to change.
func TestLocalVolumes(t *testing.T) {
	c := kit.NewCluster(t)
	c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, "evictionHard: {memory.available: 100Mi}\n"))
	c.Up()
	c.Apply(localVolumeUser)
	c.WaitReady("default", "", 1)
	if out := c.Kubectl("exec", "keeper", "--", "cat", "/a/who", "/b/who"); out != "keeper\nkeeper\n" {
		t.Errorf("the volumes hold %q", out)
	}
	// The image has 32 MiB, whatever the disk has.
	if out, err := c.TryKubectl("", "exec", "keeper", "--", "fill", "/b/more", "48"); err == nil ||
		!strings.Contains(out, "no space left") {
		t.Errorf("48 MiB into 32: %v, %s", err, out)
	}
	c.Kubectl("exec", "keeper", "--", "rm", "/b/more")
	usage := c.Kubectl("get", "--raw", "/api/v1/nodes/"+c.NodeName()+"/proxy/stats/summary")
	for _, want := range []string{`"pvcRef":{"name":"data","namespace":"default"}`, `"pvcRef":{"name":"image","namespace":"default"}`} {
		if !strings.Contains(usage, want) {
			t.Errorf("the summary lacks %s", want)
		}
	}
	c.Kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	c.Eventually("the volume has grown", func() (bool, string) {
		out := c.Kubectl("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}")
		return out == "128Mi", out
	})
	c.Apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: huge}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 900Ti}}}
---
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec:
  containers: [{name: main, image: berth.dev/toolbox:1, command: [sleep, "100000"]}]
  volumes: [{name: a, persistentVolumeClaim: {claimName: huge}}]
`)
	c.Eventually("the scheduler tells that no node has the room", func() (bool, string) {
		out := c.Kubectl("get", "pod", "huge", "-o", "jsonpath={.status.conditions[*].message}")
		return strings.Contains(out, "1 node(s) did not have enough free storage"), out
	})
	c.Kubectl("delete", "pod/huge", "pvc/huge", "--now")

	c.Kubectl("delete", "storageclass", "local-image")
	before := c.ContainerPIDs()
	kit.KillProcess(t, c.PID())
	c.MustUp(t)
	if now := c.ContainerPIDs(); len(kit.Subset(now, before)) != len(before) {
		t.Errorf("containers %v, before the crash %v", now, before)
	}
	if out, err := c.TryKubectl("", "get", "storageclass", "local-image"); err == nil {
		t.Errorf("a class that a user deleted came back:\n%s", out)
	}
	saneLocalVolumes(t, c)

	c.Kubectl("delete", "pod", "keeper", "--now")
	c.Kubectl("delete", "pvc", "--all")
	c.Eventually("the volumes are gone", func() (bool, string) {
		var left []string
		for _, folder := range []string{"volumes", "making", "trash"} {
			entries, err := os.ReadDir(filepath.Join(c.Dir, "volumes", folder))
			if err != nil {
				return false, err.Error()
			}
			for _, e := range entries {
				left = append(left, folder+"/"+e.Name())
			}
		}
		left = append(left, strings.Fields(c.Kubectl("get", "pv", "-o", "name"))...)
		return len(left) == 0, strings.Join(left, " ")
	})
}

// saneLocalVolumes runs upstream's sanity suite against the driver of a running
// node.
func saneLocalVolumes(t *testing.T, c *kit.Cluster) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(c.Dir, "run", "s", "volumes.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the driver's sockets are %v, %v", sockets, err)
	}
	dir := t.TempDir()
	tools := kit.Tools{}.Build(t, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(tools, "csi-sanity"), "--csi.endpoint="+sockets[0],
		"--csi.mountdir="+filepath.Join(dir, "mount"), "--csi.stagingdir="+filepath.Join(dir, "stage"),
		"--ginkgo.no-color").CombinedOutput()
	if err != nil {
		t.Fatalf("csi-sanity: %v\n%s", err, out)
	}
	t.Log(lastLine(string(out)))
}
