package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Images are multiples of this, and at least smallest.
const (
	grain    = 4 << 10
	smallest = 8 << 20
)

// roundImage is the size that an image for so many bytes has.
func roundImage(bytes int64) int64 { return max(smallest, (bytes+grain-1)/grain*grain) }

// makeImage makes a file whose blocks are all reserved: what it promises, the
// disk has.
func makeImage(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return reserve(f, bytes)
}

func reserve(f *os.File, bytes int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, bytes)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return fmt.Errorf("the filesystem of %s cannot reserve space for an image: use one that can (ext4, XFS, btrfs, tmpfs): %w",
				filepath.Dir(f.Name()), err)
		}
		return os.NewSyscallError("fallocate", err)
	}
}

// tools are the programs that images need; Debian has them in e2fsprogs.
var tools = []string{"mkfs.ext4", "resize2fs", "e2fsck"}

// missingTools names what this node lacks to have images.
func missingTools() []string {
	var out []string
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			out = append(out, t)
		}
	}
	return out
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// format makes an ext4 filesystem in an image. Its data is in a directory of
// its own, so that pods meet no lost+found.
func format(ctx context.Context, path string) error {
	// Discarding would give the reserved blocks back.
	return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", path)
}

// attach returns a loop device on an image, the present one if there is one.
// Unless keep, the kernel detaches it when its last user goes; the file keeps
// it until then.
func attach(path string, keep bool) (*os.File, error) {
	if dev, err := attached(path); err != nil || dev != "" {
		if err != nil {
			return nil, err
		}
		return os.OpenFile(dev, os.O_RDWR, 0)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("this node has no loop devices: %w", err)
	}
	defer control.Close()
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO}}
	if !keep {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(filepath.Dir(path)))
	// Another process may take the free device first.
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if errors.Is(err, unix.EINVAL) && config.Info.Flags&unix.LO_FLAGS_DIRECT_IO != 0 {
			config.Info.Flags &^= unix.LO_FLAGS_DIRECT_IO // tmpfs
			err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		}
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attaching %s: %w", path, os.NewSyscallError("LOOP_CONFIGURE", err))
		}
	}
	return nil, fmt.Errorf("attaching %s: other processes take every free loop device", path)
}

// attached finds the loop device of an image, "" if it has none.
func attached(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, f := range found {
		text, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
			continue // detached meanwhile
		}
		if err != nil {
			return "", err
		}
		if strings.TrimSuffix(string(text), "\n") == path {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(f)))), nil
		}
	}
	return "", nil
}

// detach gives the loop device of an image back, if it has one.
func detach(path string) error {
	name, err := attached(path)
	if err != nil || name == "" {
		return err
	}
	dev, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detaching %s: %w", name, os.NewSyscallError("LOOP_CLR_FD", err))
	}
	return nil
}

// mountImage mounts the filesystem of an image at dir, unless it is there.
func mountImage(image, dir string) error {
	if ok, err := isMount(dir); err != nil || ok {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dev, err := attach(image, false)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.Mount(dev.Name(), dir, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", image, os.NewSyscallError("mount", err))
	}
	inside := filepath.Join(dir, dataDir)
	if err := os.Mkdir(inside, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(inside, 0o777) // past the umask
}

// fit lets the filesystem of an image that no one uses fill the image.
func fit(ctx context.Context, image string) error {
	err := run(ctx, "e2fsck", "-f", "-p", image)
	// 1 says that it fixed something.
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return err
	}
	return run(ctx, "resize2fs", image)
}

// mayResize says whether this process may let a mounted ext4 grow: the kernel
// asks for CAP_SYS_RESOURCE.
func mayResize() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// growImage makes an image larger, and the device on it; if it is mounted also
// the filesystem in it.
func growImage(ctx context.Context, image string, mounted bool, bytes int64) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := reserve(f, bytes); err != nil {
		return err
	}
	name, err := attached(image)
	if err != nil || name == "" {
		return err
	}
	dev, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("growing %s: %w", name, os.NewSyscallError("LOOP_SET_CAPACITY", err))
	}
	if !mounted {
		return nil
	}
	return run(ctx, "resize2fs", name)
}
