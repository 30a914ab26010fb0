// Package faultydisk makes a small disk that a test can let fail: every new
// read and write of it ends in an I/O error (EIO) then, as of a broken device,
// until the test lets it be well again. It needs root, a loop device and
// mkfs.ext4.
package faultydisk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is mounted at its directory.
type Disk struct {
	t      testing.TB
	device string
	dir    string
}

// New mounts an empty disk of some MiB at dir until the test ends. It skips the
// test where the machine cannot.
func New(t testing.TB, dir string, mib int64) *Disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a disk that fails needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("a disk that fails needs loop devices: %v", err)
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skipf("a disk that fails needs mkfs.ext4 (e2fsprogs): %v", err)
	}
	file := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(file)
	if err == nil {
		err = f.Truncate(mib << 20)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{t: t, dir: dir, device: strings.TrimSpace(command(t, "losetup", "--find", "--show", file))}
	t.Cleanup(func() { command(t, "losetup", "--detach", d.device) })
	// Without a journal, an error of the device is an error of the call alone:
	// a journal would have the filesystem give up for good, until somebody
	// mounts it again.
	command(t, "mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", d.device)
	if err := unix.Mount(d.device, dir, "ext4", 0, "errors=continue"); err != nil {
		t.Fatalf("mounting the disk: %v", err)
	}
	t.Cleanup(func() { // who lost it may hold its files
		d.limit(0)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Break lets the disk fail.
func (d *Disk) Break() {
	d.t.Helper()
	unix.Sync()
	d.limit(64 << 10)
}

// Mend lets it be well again, with what it held.
func (d *Disk) Mend() { d.t.Helper(); d.limit(0) }

// limit makes all beyond some bytes of the device be beyond its end; 0 is none.
func (d *Disk) limit(bytes uint64) {
	d.t.Helper()
	f, err := os.OpenFile(d.device, os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err == nil {
		info.Sizelimit = bytes
		err = unix.IoctlLoopSetStatus64(int(f.Fd()), info)
	}
	if err != nil {
		d.t.Fatalf("setting the size of %s: %v", d.device, err)
	}
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}
