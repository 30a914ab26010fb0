package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/journal"
)

// SubPaths prepares the mounts of a container that want a part of a volume,
// and returns the prepared host path by index of the volumeMount. env is the
// container's environment, for subPathExpr.
//
// A container may run while another prepares, and may swap directories of a
// shared volume for links at any moment. The path is therefore resolved by
// the kernel in one call that never leaves the volume, and what that call
// opened, not its name, is what gets mounted.
func (m *Manager) SubPaths(ctx context.Context, pod *v1.Pod, c *v1.Container, mounted map[string]Mounted,
	env []container.EnvVar) (map[int]string, error) {
	out := map[int]string{}
	err := m.exclusive(ctx, pod.UID, func(context.Context, *podState) error {
		for i := range c.VolumeMounts {
			vm := &c.VolumeMounts[i]
			sub, err := container.SubPath(vm, env)
			if err != nil {
				return err
			}
			vol, ok := mounted[vm.Name]
			if sub == "" || !ok || vol.Image != nil || vol.Block {
				continue
			}
			target := m.layout.subPath(pod.UID, vm.Name, c.Name, strconv.Itoa(i))
			if err := m.k.subPath(vol.HostPath, sub, target); err != nil {
				// The cause may show the host's files; users get the name only.
				m.cfg.Log.Error("preparing subPath", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "volume", vm.Name, "err", err)
				m.record(pod, "subPath not prepared", journal.Fact{Name: "container", Value: c.Name},
					journal.Fact{Name: "volume", Value: vm.Name})
				return &container.ConfigError{
					Reason: container.ReasonCreateConfig,
					Err:    fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", vm.Name, c.Name),
				}
			}
			out[i] = target
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// subPath bind mounts what sub names below volume onto target.
func (k kernel) subPath(volume, sub, target string) error {
	root, err := unix.Open(volume, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the volume: %w", err)
	}
	defer unix.Close(root)
	fd, err := k.openBeneath(root, volume, sub)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var want unix.Stat_t
	if err := unix.Fstat(fd, &want); err != nil {
		return fmt.Errorf("reading the subPath: %w", err)
	}
	done, err := k.sameMount(target, want)
	if err != nil || done {
		return err
	}
	if err := k.subPathTarget(target, want.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	k.step("bind")
	return bindFD(fd, target)
}

// openBeneath opens sub below root, making directories that are missing with
// the mode of the volume's own. Links are followed as long as they stay below.
func (k kernel) openBeneath(root int, volume, sub string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for range 16 {
		fd, err := unix.Openat2(root, sub, how)
		if err == nil {
			return fd, nil
		}
		// The kernel saw a rename while it resolved.
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("resolving %q: %w", sub, err)
		}
		if err := k.mkdirBeneath(root, volume, sub); err != nil {
			return -1, err
		}
	}
	return -1, fmt.Errorf("resolving %q: it keeps changing", sub)
}

// mkdirBeneath makes each missing directory of sub, each one inside what the
// kernel resolved for its parent.
func (k kernel) mkdirBeneath(root int, volume, sub string) error {
	info, err := os.Stat(volume)
	if err != nil {
		return err
	}
	elements := strings.Split(filepath.Clean(sub), "/")
	for i := range elements {
		parent, err := unix.Openat2(root, filepath.Join(append([]string{"."}, elements[:i]...)...), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return fmt.Errorf("resolving the parent of %q: %w", elements[i], err)
		}
		k.step("mkdir subpath")
		err = unix.Mkdirat(parent, elements[i], 0o700)
		if err == nil {
			err = k.setMode(parent, elements[i], info)
		}
		unix.Close(parent)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making %q: %w", elements[i], err)
		}
	}
	return nil
}

// setMode gives a directory just made the permissions of the volume's root,
// without following a link that took its place.
func (k kernel) setMode(parent int, name string, like fs.FileInfo) error {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Chmod(like.Mode() & (fs.ModePerm | fs.ModeSetgid))
}

// sameMount says whether target already shows what is wanted. A mount of
// something else (the file was replaced since) is taken down.
func (k kernel) sameMount(target string, want unix.Stat_t) (bool, error) {
	mounted, err := isMount(target)
	if err != nil || !mounted {
		return false, err
	}
	var got unix.Stat_t
	if err := unix.Lstat(target, &got); err == nil && got.Dev == want.Dev && got.Ino == want.Ino {
		return true, nil
	}
	return false, k.unmount(target, true)
}

// subPathTarget makes an empty file or directory to mount on.
func (k kernel) subPathTarget(target string, dir bool) error {
	if err := k.mkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if info, err := os.Lstat(target); err == nil && info.IsDir() != dir {
		if err := k.removeTree(target); err != nil {
			return err
		}
	}
	k.step("subpath target")
	if dir {
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// bindFD mounts what fd refers to onto target without using any path to it.
func bindFD(fd int, target string) error {
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		// Kernels before 5.2, or a filter: the descriptor's link in /proc
		// leads to the same object.
		if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting the subPath: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the subPath for mounting: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the subPath: %w", err)
	}
	return nil
}
