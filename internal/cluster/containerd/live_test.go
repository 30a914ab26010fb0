package containerd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// bundle is the directory of the built runtime bundle, or ends the test with
// what is missing.
func bundle(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BERTH_BUNDLE")
	if dir == "" {
		t.Skip("BERTH_BUNDLE is not set: it names the directory with containerd and the images (make test sets it)")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: containerd needs root")
	}
	return dir
}

func TestSupervisorAdoptsReplacesAndImports(t *testing.T) {
	bin := bundle(t)
	dir, err := os.MkdirTemp("", "ctrd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fresh := func() *Supervisor {
		return &Supervisor{
			Options: Options{Layout: Layout{DataDir: dir, Instance: "berth-test"}, CNIBinDir: bin, OCIRuntime: "/usr/sbin/runc",
				PauseImage: "berth.dev/pause:1", Snapshotter: "overlayfs", RestrictOOM: true},
			Binary: filepath.Join(bin, "containerd"), LogFile: filepath.Join(dir, "logs", "containerd.log"), Log: slog.Default(),
		}
	}
	s := fresh()
	pid, adopted, err := s.Ensure(ctx)
	if err != nil || adopted {
		t.Fatal(pid, adopted, err)
	}
	t.Cleanup(func() { fresh().Stop(context.Background()) })
	if again, adopted, err := fresh().Ensure(ctx); err != nil || !adopted || again != pid {
		t.Fatalf("second Ensure: pid %d (first %d), adopted %v, %v", again, pid, adopted, err)
	}
	conn, err := Dial(s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, present := range []bool{false, true} {
		got, err := ImportDir(ctx, conn, filepath.Join(bin, "images"), "berth.dev/pause:1")
		if err != nil || len(got) < 2 {
			t.Fatal(got, err)
		}
		for _, img := range got {
			if img.Present != present {
				t.Fatalf("round %d: %+v", i, img)
			}
		}
	}
	st, err := runtimeapi.NewImageServiceClient(conn).ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "berth.dev/pause:1"}})
	if err != nil || st.Image == nil || !st.Image.Pinned {
		t.Fatalf("pause image through CRI: %+v, %v", st, err)
	}

	// A killed containerd comes back, and Watch says so.
	died := make(chan string, 1)
	s.Died = func(cause string) { died <- cause }
	watch, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); s.Watch(watch, pid) }()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-died
	rt := runtimeapi.NewRuntimeServiceClient(conn)
	for {
		if _, err := rt.Version(ctx, &runtimeapi.VersionRequest{}); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-done
	second := s.PID()

	// Another configuration replaces it.
	other := fresh()
	other.Snapshotter = "native"
	third, adopted, err := other.Ensure(ctx)
	if err != nil || adopted || third == second {
		t.Fatal(third, second, adopted, err)
	}
	if err := other.Stop(ctx); err != nil || other.PID() != 0 {
		t.Fatal(err)
	}
}
