package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// TestTwoClusters runs two clusters side by side; a purge of one must not be
// noticed by the other.
func TestTwoClusters(t *testing.T) {
	a := newCluster(t)
	before := look(t, a.dir)
	a.up()
	b := newCluster(t)
	b.up()
	for _, c := range []*cluster{a, b} {
		c.kubectl("run", "one", "--image=berth.dev/toolbox:1", "--labels=app=one", "--", "serve")
	}
	a.container("one")
	kept := b.container("one")
	runtime, process := b.runtimePID(), b.pid()
	a.disconnect()
	a.berth("down", "--data-dir", a.dir, "--purge")
	for _, left := range look(t, a.dir).left(before) {
		// What is left is b's; its processes do not carry a's directory.
		if strings.Contains(left, a.dir) || strings.HasPrefix(left, "process") {
			t.Errorf("the purge left %s", left)
		}
	}
	if now := b.container("one"); now != kept || b.runtimePID() != runtime || b.pid() != process {
		t.Errorf("the other cluster was touched: %+v, was %+v", now, kept)
	}
	b.kubectl("run", "two", "--image=berth.dev/toolbox:1", "--labels=app=two", "--", "serve")
	b.container("two")
}

// TestRuntimeThatIsThere brings a cluster up on a containerd of the user's
// own: berth uses it, leaves it running, and stops only its own pods.
func TestRuntimeThatIsThere(t *testing.T) {
	c := newCluster(t)
	dir, err := os.MkdirTemp("", "bc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	runc, err := containerdRuntime(t)
	if err != nil {
		t.Skipf("no OCI runtime works on this machine: %v", err)
	}
	own := livetest.Supervisor(c.bin, dir, "berth-own", runc)
	// The agent writes the pod network's configuration where this runtime
	// looks for it. The directory is the runtime's: containerd ends when it is
	// removed, as a purge of the cluster would.
	if err := os.MkdirAll(filepath.Join(dir, "agent", "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.dir, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "agent", "cni"), filepath.Join(c.dir, "agent", "cni")); err != nil {
		t.Fatal(err)
	}
	pid, _, err := own.Ensure(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c.extra = []string{"--container-runtime-endpoint", "unix://" + own.Socket()}
	c.up()
	c.kubectl("run", "one", "--image=berth.dev/toolbox:1", "--labels=app=one", "--", "serve")
	c.waitReady("default", "app=one", 1)
	if out := c.berth("status", "--data-dir", c.dir); !strings.Contains(out, own.Socket()) {
		t.Errorf("status does not name the runtime in use:\n%s", out)
	}
	c.disconnect()
	if out := c.berth("down", "--data-dir", c.dir, "--purge"); !strings.Contains(out, "1 pods") {
		t.Errorf("down must stop the pods in the other runtime:\n%s", out)
	}
	if own.PID() != pid {
		t.Errorf("berth touched the runtime: process %d, was %d", own.PID(), pid)
	}
}

// containerdRuntime finds an OCI runtime that works here, as berth does.
func containerdRuntime(t *testing.T) (string, error) {
	t.Helper()
	t.Cleanup(func() {
		if err := host.RemoveCgroup("/sys/fs/cgroup", "/berth-own"); err != nil {
			t.Error(err)
		}
	})
	chosen, _, err := containerd.ChooseOCIRuntime(context.Background(), filepath.Join(t.TempDir(), "memo.json"), "/berth-own", "test")
	return chosen.Path, err
}
