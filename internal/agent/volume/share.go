package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"
)

// ShareRoot lets mounts below dir propagate into and out of containers
// (mountPropagation), on hosts whose mounts are private: it makes dir a mount
// of its own and shares it. On most hosts everything is shared already and
// nothing happens. It must run before anything is mounted below dir, and by
// the one who also unmounts dir when the node is removed.
func ShareRoot(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("sharing mounts below %s: %w", dir, err)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("sharing mounts: %w", err)
	}
	holder, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	var at *mountinfo.Info
	for _, m := range holder {
		// Later mounts cover earlier ones at the same place.
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	if at != nil && hasPeers(at.Optional) {
		return nil
	}
	if at == nil || at.Mountpoint != dir {
		below, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		if len(below) > 0 {
			return fmt.Errorf("sharing mounts below %s: %s is mounted there already, so propagation stays off until the next boot", dir,
				below[0].Mountpoint)
		}
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s onto itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("sharing mounts below %s: %w", dir, err)
	}
	return nil
}

// UnshareRoot takes down the mount that ShareRoot made, if it made one and
// nothing is mounted below any more. A file system that another party put there
// stays.
func UnshareRoot(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unsharing mounts: %w", err)
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(mounts) != 1 || mounts[0].Mountpoint != dir {
		return nil
	}
	parents, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != mounts[0].Parent, false })
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	if len(parents) != 1 || !ontoItself(mounts[0], parents[0]) {
		return nil
	}
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmounting %s from itself: %w", dir, err)
	}
	return nil
}

// ontoItself says whether a mount shows what its parent has at that place.
func ontoItself(m, parent *mountinfo.Info) bool {
	rel, err := filepath.Rel(parent.Mountpoint, m.Mountpoint)
	return err == nil && m.Major == parent.Major && m.Minor == parent.Minor && m.Root == filepath.Join(parent.Root, rel)
}

// hasPeers reads the optional fields of a mount for "shared:N".
func hasPeers(optional string) bool {
	return len(optional) >= 7 && optional[:7] == "shared:"
}
