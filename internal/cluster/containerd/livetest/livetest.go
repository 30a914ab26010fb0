// Package livetest gives tests and benchmarks of other packages a real
// container runtime.
package livetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/cluster/containerd"
)

// podCIDR and bridge are of no cluster: tests may run beside one.
const (
	podCIDR = "10.199.77.0/24"
	bridge  = "berthtest0"
)

// pauseImage is in every bundle.
const pauseImage = "berth.dev/pause:1"

// own is the runtime that this test binary started.
var own struct {
	once       sync.Once
	supervisor *containerd.Supervisor
	dir        string
	err        error
}

// Main runs the tests of a package and takes away the runtime that Endpoint
// started. Call it from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "taking away the runtime of the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// Endpoint returns the CRI endpoint to test with: the one that BERTH_TEST_CRI
// names, or that of a containerd started from the bundle in BERTH_BUNDLE, with
// the bundle's images and a pod network. Without either the test is skipped;
// with a bundle that does not work it fails.
func Endpoint(t testing.TB) string {
	t.Helper()
	if endpoint := os.Getenv("BERTH_TEST_CRI"); endpoint != "" {
		return endpoint
	}
	bundle := os.Getenv("BERTH_BUNDLE")
	if bundle == "" {
		t.Skip("no container runtime: set BERTH_BUNDLE to the built bundle (make live does), or BERTH_TEST_CRI to a CRI endpoint")
	}
	own.once.Do(func() { own.err = start(bundle) })
	if own.err != nil {
		t.Fatalf("starting containerd from BERTH_BUNDLE=%s: %v", bundle, own.err)
	}
	return "unix://" + own.supervisor.Socket()
}

func start(bundle string) error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	var oci string
	for _, name := range []string{"runc", "crun"} {
		if path, err := exec.LookPath(name); err == nil && oci == "" {
			oci = path
		}
	}
	if oci == "" {
		return errors.New("there is neither runc nor crun in PATH")
	}
	var err error
	if own.dir, err = os.MkdirTemp("", "ctrd"); err != nil {
		return err
	}
	own.supervisor = Supervisor(bundle, own.dir, "berth-test", oci)
	options := network.CNIOptions{Name: "berth-test", Bridge: bridge, DataDir: filepath.Join(own.dir, "cni"), OneStep: true}
	if err := network.WriteCNI(own.supervisor.CNIConfDir(), []string{podCIDR}, options); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return Start(ctx, own.supervisor)
}

// Supervisor is that of the containerd of a bundle, with its files below dir.
func Supervisor(bundle, dir, instance, oci string) *containerd.Supervisor {
	return &containerd.Supervisor{
		Options: containerd.Options{
			Layout: containerd.Layout{DataDir: dir, Instance: instance}, CNIBinDir: bundle, OCIRuntime: oci,
			PauseImage: pauseImage, Snapshotter: "overlayfs", RestrictOOM: true,
		},
		Binary: filepath.Join(bundle, "containerd"), LogFile: filepath.Join(dir, "logs", "containerd.log"),
		Log: slog.New(slog.DiscardHandler),
	}
}

// Start starts a containerd of Supervisor and gives it the bundle's images.
func Start(ctx context.Context, s *containerd.Supervisor) error {
	if _, _, err := s.Ensure(ctx); err != nil {
		return err
	}
	conn, err := containerd.Dial(s.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = containerd.ImportDir(ctx, conn, filepath.Join(s.CNIBinDir, "images"), pauseImage)
	return err
}

// stop ends the runtime and removes its files and its bridge.
func stop() error {
	if own.supervisor == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := own.supervisor.Stop(ctx)
	if link, lerr := netlink.LinkByName(bridge); lerr == nil {
		err = errors.Join(err, netlink.LinkDel(link))
	}
	return errors.Join(err, os.RemoveAll(own.dir))
}
