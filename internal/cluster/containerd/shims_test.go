package containerd

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets this program be the processes that the test of shims needs.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_TEST_SHIM") != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		return
	}
	os.Exit(m.Run())
}

// TestLostShims: a shim without a bundle goes, others only when all may.
func TestLostShims(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{Options: Options{Layout: Layout{DataDir: t.TempDir()}}}
	start := func(program, socket string, bundle bool) *exec.Cmd {
		dir := filepath.Join(t.TempDir(), "bundle")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := &exec.Cmd{Path: self, Args: []string{"/opt/" + program, "-namespace", "k8s.io", "-id", "x", "-address", socket},
			Dir: dir, Env: []string{"BERTH_TEST_SHIM=1"}}
		hold, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			hold.Close()
			_ = cmd.Wait() // killed or not
		})
		if !bundle {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
		}
		return cmd
	}
	alive := func(cmd *exec.Cmd) bool {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		return err == nil && info.Signo == 0
	}
	gone := start(shimName, s.Socket(), false)
	kept := start(shimName, s.Socket(), true)
	foreign := start(shimName, "/run/containerd/containerd.sock", false)
	other := start("sleep", s.Socket(), false)

	if n, err := s.EndLostShims(false); n != 1 || err != nil {
		t.Errorf("ended %d, %v", n, err)
	}
	if alive(gone) || !alive(kept) || !alive(foreign) || !alive(other) {
		t.Errorf("lost %v, in use %v, of another containerd %v, no shim %v", alive(gone), alive(kept), alive(foreign), alive(other))
	}
	if n, err := s.EndLostShims(true); n != 1 || err != nil {
		t.Errorf("ended %d of all, %v", n, err)
	}
	if alive(kept) || !alive(foreign) || !alive(other) {
		t.Errorf("of all: in use %v, of another containerd %v, no shim %v", alive(kept), alive(foreign), alive(other))
	}
}
