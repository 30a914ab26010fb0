package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// onlyOurs says whether dir holds nothing but what a start leaves that did not
// get as far as writing the cluster's settings. Only then may a failed start
// or a purge empty a directory without settings: it could be anybody's.
func onlyOurs(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return !slices.Contains([]string{"logs", "lock", "run", "cluster.json.new", "lost+found"}, e.Name())
	})
}

// purgeFiles unmounts everything mounted below dir, deepest first, and removes
// dir but for the named entries. It refuses to delete while a mount is left:
// deleting through a mount would delete what is mounted.
func purgeFiles(dir string, keep ...string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	if len(keep) > 0 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("removing %s: %w", dir, err)
		}
		for _, e := range entries {
			if slices.Contains(keep, e.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("removing %s: %w", dir, err)
			}
		}
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

func unmountBelow(dir string) error {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	// Mounts can be stacked on one path: look again until none is left.
	for range 16 {
		mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
			return m.Mountpoint != dir && !strings.HasPrefix(m.Mountpoint, prefix), false
		})
		if err != nil {
			return fmt.Errorf("listing mounts below %s: %w", dir, err)
		}
		if len(mounts) == 0 {
			return nil
		}
		for i := len(mounts) - 1; i >= 0; i-- {
			if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
				!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmounting %s: %w", mounts[i].Mountpoint, err)
			}
		}
	}
	return fmt.Errorf("mounts below %s keep coming back: something still mounts there", dir)
}
