package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
	c := newCluster(t)
	c.extra = append(c.extra, "--agent-config", agentConfig(t, "evictionHard: {memory.available: 100Mi}\n"))
	c.up()
	c.apply(localVolumeUser)
	c.waitReady("default", "", 1)
	if out := c.kubectl("exec", "keeper", "--", "cat", "/a/who", "/b/who"); out != "keeper\nkeeper\n" {
		t.Errorf("the volumes hold %q", out)
	}
	// The image has 32 MiB, whatever the disk has.
	if out, err := c.tryKubectl("", "exec", "keeper", "--", "fill", "/b/more", "48"); err == nil ||
		!strings.Contains(out, "no space left") {
		t.Errorf("48 MiB into 32: %v, %s", err, out)
	}
	c.kubectl("exec", "keeper", "--", "rm", "/b/more")
	usage := c.kubectl("get", "--raw", "/api/v1/nodes/"+c.nodeName()+"/proxy/stats/summary")
	for _, want := range []string{`"pvcRef":{"name":"data","namespace":"default"}`, `"pvcRef":{"name":"image","namespace":"default"}`} {
		if !strings.Contains(usage, want) {
			t.Errorf("the summary lacks %s", want)
		}
	}
	c.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	c.eventually("the volume has grown", func() (bool, string) {
		out := c.kubectl("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}")
		return out == "128Mi", out
	})
	c.apply(`
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
	c.eventually("the scheduler tells that no node has the room", func() (bool, string) {
		out := c.kubectl("get", "pod", "huge", "-o", "jsonpath={.status.conditions[*].message}")
		return strings.Contains(out, "1 node(s) did not have enough free storage"), out
	})
	c.kubectl("delete", "pod/huge", "pvc/huge", "--now")

	c.kubectl("delete", "storageclass", "local-image")
	before := c.containerPIDs()
	kill(t, c.pid())
	c.mustUp(t)
	if now := c.containerPIDs(); len(subset(now, before)) != len(before) {
		t.Errorf("containers %v, before the crash %v", now, before)
	}
	if out, err := c.tryKubectl("", "get", "storageclass", "local-image"); err == nil {
		t.Errorf("a class that a user deleted came back:\n%s", out)
	}
	saneLocalVolumes(t, c)

	c.kubectl("delete", "pod", "keeper", "--now")
	c.kubectl("delete", "pvc", "--all")
	c.eventually("the volumes are gone", func() (bool, string) {
		var left []string
		for _, folder := range []string{"volumes", "making", "trash"} {
			entries, err := os.ReadDir(filepath.Join(c.dir, "volumes", folder))
			if err != nil {
				return false, err.Error()
			}
			for _, e := range entries {
				left = append(left, folder+"/"+e.Name())
			}
		}
		left = append(left, strings.Fields(c.kubectl("get", "pv", "-o", "name"))...)
		return len(left) == 0, strings.Join(left, " ")
	})
}

// saneLocalVolumes runs upstream's sanity suite against the driver of a running
// node.
func saneLocalVolumes(t *testing.T, c *cluster) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(c.dir, "run", "s", "volumes.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the driver's sockets are %v, %v", sockets, err)
	}
	tools, dir := t.TempDir(), t.TempDir()
	buildIn(t, filepath.Join("..", "tools"), tools, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(tools, "csi-sanity"), "--csi.endpoint="+sockets[0],
		"--csi.mountdir="+filepath.Join(dir, "mount"), "--csi.stagingdir="+filepath.Join(dir, "stage"),
		"--ginkgo.no-color").CombinedOutput()
	if err != nil {
		t.Fatalf("csi-sanity: %v\n%s", err, out)
	}
	t.Log(lastLine(string(out)))
}
