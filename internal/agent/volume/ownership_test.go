package volume

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnershipStaysInTheVolume: a pod on a shared volume swaps a directory for
// a link to the host's files again and again while the volume is given to
// another pod's group. Nothing outside changes; what is inside does.
func TestOwnershipStaysInTheVolume(t *testing.T) {
	needRoot(t)
	volume, host := t.TempDir(), t.TempDir()
	secret := filepath.Join(host, "secret")
	for _, err := range []error{
		os.WriteFile(secret, nil, 0o600), os.Chmod(secret, 0o600), os.Mkdir(filepath.Join(volume, "d"), 0o755),
		os.WriteFile(filepath.Join(volume, "d", "secret"), nil, 0o600), os.Symlink(host, filepath.Join(volume, "l")),
		os.WriteFile(filepath.Join(volume, "suid"), nil, 0o600), os.Chmod(filepath.Join(volume, "suid"), os.ModeSetuid|0o755),
		syscall.Mkfifo(filepath.Join(volume, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, l := filepath.Join(volume, "d"), filepath.Join(volume, "l")
		for !stop.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, l, unix.RENAME_EXCHANGE); err != nil {
				return // the file system cannot: then nothing races, and the rest still holds
			}
		}
	}()
	o := &ownership{group: 4242}
	for range 200 {
		if err := o.apply(volume); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	<-done
	if info, err := os.Stat(secret); err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Gid == 4242 {
		t.Errorf("the host's file: %v, %v", info.Mode(), err)
	}
	if err := o.apply(volume); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "d", "l", "d/secret", "l/secret", "suid", "fifo"} {
		path := filepath.Join(volume, name)
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeSymlink != 0 {
			continue
		}
		if info.Sys().(*syscall.Stat_t).Gid != 4242 && filepath.Dir(path) != host {
			if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(real) != host {
				t.Errorf("%q was not given to the group", name)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(volume, "suid")); err != nil || info.Mode()&os.ModeSetuid == 0 {
		t.Errorf("setuid was lost: %v, %v", info.Mode(), err)
	}
}
