package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/testkit/faultydisk"
)

// overfullPod may hold 10 MiB in a volume that the test fills from outside.
const overfullPod = `
apiVersion: v1
kind: Pod
metadata: {name: overfull, labels: {app: overfull}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, emptyDir: {sizeLimit: 10Mi}}]
`

// TestStoreOutlivesAFailingDisk: the device of the store answers with I/O errors
// under a running cluster. Agent, proxy and DNS go on, a pod that uses up its
// disk is evicted although the API answers no write, and when the device is well
// the server comes back by itself, with what it had acknowledged, and tells of
// the eviction. No other container was disturbed.
func TestStoreOutlivesAFailingDisk(t *testing.T) {
	c := newCluster(t)
	dir := filepath.Join(c.dir, "etcd")
	must(t, os.MkdirAll(dir, 0o700))
	disk := faultydisk.New(t, dir, 700)
	must(t, os.Remove(filepath.Join(dir, "lost+found"))) // a store begins in an empty directory
	t.Cleanup(func() {                                   // before the disk goes
		disk.Mend()
		if out, err := c.tryBerth("down", "--data-dir", c.dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	c.up()
	c.apply(simplePod("stays", ""))
	c.apply(overfullPod)
	before, overfull, pid := c.container("stays"), c.container("overfull"), c.pid()
	uid := c.waitReady("default", "app=overfull", 1)[0].UID
	nodeIP := c.node().Status.Addresses[0].Address

	disk.Break()
	status := func() string { out, _ := c.tryBerth("status", "--data-dir", c.dir); return out }
	c.eventually("the status says that the store failed", func() (bool, string) {
		c.writes() // it fails, or is never answered
		out := status()
		return strings.Contains(out, "input/output error"), out
	})
	volume := filepath.Join(c.dir, "agent", "pods", string(uid), "volumes", "kubernetes.io~empty-dir", "data")
	must(t, os.WriteFile(filepath.Join(volume, "fill"), make([]byte, 20<<20), 0o644))
	c.eventually("the pod that uses up its disk is ended", func() (bool, string) {
		return c.containerPIDs()[overfull.id] != overfull.pid, "its process goes on"
	})
	if now := c.pid(); now != pid {
		t.Errorf("the process was %d, is %d", pid, now)
	}
	for name, url := range map[string]string{
		"agent": fmt.Sprintf("http://127.0.0.1:%d/healthz", c.first+2), "proxy": fmt.Sprintf("http://127.0.0.1:%d/livez", c.first+3),
	} {
		if answer, err := http.Get(url); err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v", name, answer, err)
		} else {
			answer.Body.Close()
		}
	}
	if ips := resolveAt(t, net.JoinHostPort(nodeIP, fmt.Sprint(c.first+6)), "kubernetes.default.svc.cluster.local"); len(ips) != 1 {
		t.Errorf("DNS answers %v", ips)
	}
	if c.writes() {
		t.Error("the API takes writes that no disk holds")
	}

	disk.Mend()
	c.eventually("the server is back", func() (bool, string) { return c.writes(), status() })
	c.eventually("the API learns of the eviction", func() (bool, string) {
		out, err := c.tryKubectl("", "get", "pod", "overfull", "-o", "jsonpath={.status.phase} {.status.reason}")
		return err == nil && out == string(v1.PodFailed)+" Evicted", out
	})
	if now := c.container("stays"); now.id != before.id || now.pid != before.pid {
		t.Errorf("the container was %v, is %v", before, now)
	}
	if now := c.pid(); now != pid {
		t.Errorf("the process was %d, is %d: it begins anew in its own place", pid, now)
	}
}
