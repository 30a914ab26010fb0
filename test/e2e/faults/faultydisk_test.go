package faults

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
	"github.com/berth-dev/berth/test/e2e/kit"
)

// overfullPod may hold 10 MiB in a volume that the test fills from outside.
const overfullPod = `
apiVersion: v1
kind: Pod
metadata: {name: overfull, labels: {app: overfull}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", command: [pause], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, emptyDir: {sizeLimit: 10Mi}}]
`

// TestStoreOutlivesAFailingDisk: the device of the store answers with I/O errors
// under a running cluster. Agent, proxy and DNS go on, a pod that uses up its
// disk is evicted although the API answers no write, and when the device is well
// the server comes back by itself, with what it had acknowledged, and tells of
// the eviction. No other container was disturbed.
func TestStoreOutlivesAFailingDisk(t *testing.T) {
	c := kit.NewCluster(t)
	dir := filepath.Join(c.Dir, "etcd")
	kit.Must(t, os.MkdirAll(dir, 0o700))
	disk := faultydisk.New(t, dir, 700)
	kit.Must(t, os.Remove(filepath.Join(dir, "lost+found"))) // a store begins in an empty directory
	t.Cleanup(func() {                                       // before the disk goes
		disk.Mend()
		if out, err := c.TryBerth("down", "--data-dir", c.Dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	c.Up()
	c.Apply(kit.SimplePod("stays", ""))
	c.Apply(overfullPod)
	before, overfull, pid := c.Container("stays"), c.Container("overfull"), c.PID()
	uid := c.WaitReady("default", "app=overfull", 1)[0].UID
	nodeIP := c.Node().Status.Addresses[0].Address

	disk.Break()
	status := func() string { out, _ := c.TryBerth("status", "--data-dir", c.Dir); return out }
	c.Eventually("the status says that the store failed", func() (bool, string) {
		writes(c) // it fails, or is never answered
		out := status()
		return strings.Contains(out, "input/output error"), out
	})
	volume := filepath.Join(c.Dir, "agent", "pods", string(uid), "volumes", "kubernetes.io~empty-dir", "data")
	kit.Must(t, os.WriteFile(filepath.Join(volume, "fill"), make([]byte, 20<<20), 0o644))
	c.Eventually("the pod that uses up its disk is ended", func() (bool, string) {
		return c.ContainerPIDs()[overfull.ID] != overfull.PID, "its process goes on"
	})
	if now := c.PID(); now != pid {
		t.Errorf("the process was %d, is %d", pid, now)
	}
	goOn(t, c, nodeIP)
	if writes(c) {
		t.Error("the API takes writes that no disk holds")
	}

	disk.Mend()
	c.Eventually("the server is back", func() (bool, string) { return writes(c), status() })
	c.Eventually("the API learns of the eviction", func() (bool, string) {
		out, err := c.TryKubectl("", "get", "pod", "overfull", "-o", "jsonpath={.status.phase} {.status.reason}")
		return err == nil && out == string(v1.PodFailed)+" Evicted", out
	})
	if now := c.ContainerPIDs()[overfull.ID]; now != 0 {
		t.Errorf("the evicted container runs as %d", now)
	}
	if now := c.Container("stays"); now.ID != before.ID || now.PID != before.PID {
		t.Errorf("the container was %v, is %v", before, now)
	}
	if now := c.PID(); now != pid {
		t.Errorf("the process was %d, is %d: it begins anew in its own place", pid, now)
	}
}

// goOn checks that agent, proxy and DNS answer though the store is lost.
func goOn(t *testing.T, c *kit.Cluster, nodeIP string) {
	t.Helper()
	for name, url := range map[string]string{
		"agent": fmt.Sprintf("http://127.0.0.1:%d/healthz", c.FirstPort+2),
		"proxy": fmt.Sprintf("http://127.0.0.1:%d/livez", c.FirstPort+3),
	} {
		if answer, err := http.Get(url); err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v", name, answer, err)
		} else {
			answer.Body.Close()
		}
	}
	if ips := resolveAt(t, net.JoinHostPort(nodeIP, fmt.Sprint(c.FirstPort+6)), "kubernetes.default.svc.cluster.local"); len(ips) != 1 {
		t.Errorf("DNS answers %v", ips)
	}
}
