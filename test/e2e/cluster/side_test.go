package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestTwoClusters runs two clusters side by side; a purge of one must not be
// noticed by the other.
func TestTwoClusters(t *testing.T) {
	a := kit.NewCluster(t)
	before := kit.ReadHostState(t, a.Dir)
	a.Up()
	b := kit.NewCluster(t)
	b.Up()
	for _, c := range []*kit.Cluster{a, b} {
		c.Kubectl("run", "one", "--image=berth.dev/toolbox:1", "--labels=app=one", "--", "serve")
	}
	a.Container("one")
	kept := b.Container("one")
	runtime, process := b.RuntimePID(), b.PID()
	a.Disconnect()
	a.Berth("down", "--data-dir", a.Dir, "--purge")
	for _, left := range kit.ReadHostState(t, a.Dir).LeftSince(before) {
		// What is left is b's; its processes do not carry a's directory.
		if strings.Contains(left, a.Dir) || strings.HasPrefix(left, "process") {
			t.Errorf("the purge left %s", left)
		}
	}
	if now := b.Container("one"); now != kept || b.RuntimePID() != runtime || b.PID() != process {
		t.Errorf("the other cluster was touched: %+v, was %+v", now, kept)
	}
	b.Kubectl("run", "two", "--image=berth.dev/toolbox:1", "--labels=app=two", "--", "serve")
	b.Container("two")
}

// TestRuntimeThatIsThere brings a cluster up on a containerd of the user's
// own: berth uses it, leaves it running, and stops only its own pods.
func TestRuntimeThatIsThere(t *testing.T) {
	c := kit.NewCluster(t)
	dir, err := os.MkdirTemp("", "bc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	runc, err := kit.ContainerdRuntime(t)
	if err != nil {
		t.Skipf("no OCI runtime works on this machine: %v", err)
	}
	own := livetest.Supervisor(c.Bin, dir, "berth-own", runc)
	// The agent writes the pod network's configuration where this runtime
	// looks for it. The directory is the runtime's: containerd ends when it is
	// removed, as a purge of the cluster would.
	if err := os.MkdirAll(filepath.Join(dir, "agent", "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "agent", "cni"), filepath.Join(c.Dir, "agent", "cni")); err != nil {
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
	c.Flags = []string{"--container-runtime-endpoint", "unix://" + own.Socket()}
	c.Up()
	c.Kubectl("run", "one", "--image=berth.dev/toolbox:1", "--labels=app=one", "--", "serve")
	c.WaitReady("default", "app=one", 1)
	if out := c.Berth("status", "--data-dir", c.Dir); !strings.Contains(out, own.Socket()) {
		t.Errorf("status does not name the runtime in use:\n%s", out)
	}
	c.Disconnect()
	if out := c.Berth("down", "--data-dir", c.Dir, "--purge"); !strings.Contains(out, "1 pods") {
		t.Errorf("down must stop the pods in the other runtime:\n%s", out)
	}
	if own.PID() != pid {
		t.Errorf("berth touched the runtime: process %d, was %d", own.PID(), pid)
	}
}
