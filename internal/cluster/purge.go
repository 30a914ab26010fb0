package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// purgeFiles unmounts everything mounted below dir, deepest first, and removes
// dir. It refuses to delete while a mount is left: deleting through a mount
// would delete what is mounted.
func purgeFiles(dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
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
			if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmounting %s: %w", mounts[i].Mountpoint, err)
			}
		}
	}
	return fmt.Errorf("mounts below %s keep coming back: something still mounts there", dir)
}
