package volume

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/moby/sys/mountinfo"
)

func TestShareRoot(t *testing.T) {
	needRoot(t)
	private := t.TempDir() // a private mount, whatever the host's root is
	if err := unix.Mount("tmpfs", private, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(private, unix.MNT_DETACH) }()
	if err := unix.Mount("", private, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(private, "agent")
	for range 2 { // as after a restart
		if err := ShareRoot(root); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(root))
	if err != nil || len(mounts) != 1 || !hasPeers(mounts[0].Optional) {
		t.Fatalf("mounts %v, %v", mounts, err)
	}
	m := New(Config{RootDir: root})
	defer m.Close()
	mustMount(t, m, testPod("a", emptyDirVolume("mem", v1.StorageMediumMemory)))
	mustUnmount(t, m, "a")
	if list, _ := mountsBelow(root); len(list) != 1 {
		t.Errorf("taking down a pod left %d mounts, want the root's own", len(list))
	}
	if err := UnshareRoot(root); err != nil {
		t.Fatal(err)
	}
	if list, _ := mountsBelow(root); len(list) != 0 {
		t.Errorf("unsharing left %d mounts", len(list))
	}
	// A disk that someone mounted there is not ours to take down.
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := UnshareRoot(root); err != nil {
		t.Fatal(err)
	}
	if list, _ := mountsBelow(root); len(list) != 1 {
		t.Errorf("unsharing took down somebody else's mount: %d left", len(list))
	}
	if err := unix.Unmount(root, 0); err != nil {
		t.Fatal(err)
	}
	busy := filepath.Join(private, "busy")
	k := kernel{}
	if err := k.mkdirAll(filepath.Join(busy, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := k.tmpfs(filepath.Join(busy, "in"), 0); err != nil {
		t.Fatal(err)
	}
	if err := ShareRoot(busy); err == nil {
		t.Error("a directory with mounts below was covered")
	}
	if err := k.unmountBelow(busy); err != nil {
		t.Fatal(err)
	}
}
