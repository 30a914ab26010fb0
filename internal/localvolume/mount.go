package localvolume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// isMount says whether something is mounted at path; what does not exist is no
// mount.
func isMount(path string) (bool, error) {
	ok, err := mountinfo.Mounted(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return ok, err
}

// bind shows source, a directory or device, at target. Targets are paths of
// the agent's, never of a pod's.
func bind(source, target string, options mountOptions) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if info.IsDir() {
		err = os.Mkdir(target, 0o750)
	} else {
		err = touch(target)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, os.NewSyscallError("mount", err))
	}
	if options == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|uintptr(options), ""); err != nil {
		_ = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		return fmt.Errorf("remounting %s: %w", target, os.NewSyscallError("mount", err))
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// unbind takes down what is mounted at target and removes the place.
func unbind(target string) error {
	for {
		ok, err := isMount(target)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", target, os.NewSyscallError("umount2", err))
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type mountOptions uintptr

// flagOf are the mount options that mean something for a bind mount.
var flagOf = map[string]mountOptions{
	"ro": unix.MS_RDONLY, "rw": 0, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

func parseOptions(words []string) (out mountOptions, err error) {
	for _, w := range words {
		flag, ok := flagOf[w]
		if !ok {
			names := make([]string, 0, len(flagOf))
			for n := range flagOf {
				names = append(names, n)
			}
			slices.Sort(names)
			return 0, fmt.Errorf("mount option %q is not one of %v", w, names)
		}
		out |= flag
	}
	return out, nil
}
