package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// kernel performs every change to the file system. All of it goes through
// here so that tests can stop the process before any one step.
type kernel struct {
	// hook, when set, is called before each step.
	hook func(step string)
}

func (k kernel) step(name string) {
	if k.hook != nil {
		k.hook(name)
	}
}

func (k kernel) mkdirAll(dir string, mode fs.FileMode) error {
	if fi, err := os.Lstat(dir); err == nil && fi.IsDir() {
		return nil
	}
	k.step("mkdir")
	return os.MkdirAll(dir, mode)
}

// isMount says whether path itself is the root of a mount.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	return mountinfo.Mounted(path)
}

// tmpfs mounts a memory file system unless one is there. size in bytes; 0 for
// the kernel's default. Contents never reach a swap device where the kernel
// can promise that.
func (k kernel) tmpfs(path string, size int64) error {
	mounted, err := isMount(path)
	if err != nil || mounted {
		return err
	}
	k.step("mount tmpfs")
	options := "mode=0777"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	err = unix.Mount("tmpfs", path, "tmpfs", 0, options+",noswap")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, options)
	}
	if err != nil {
		return fmt.Errorf("mounting tmpfs: %w", err)
	}
	return nil
}

// NoSwapTmpfs tells whether this kernel can keep a memory file system out of
// swap. Nothing is mounted to find out.
func NoSwapTmpfs() bool {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, "noswap") == nil
}

func (k kernel) hugetlbfs(path string, pageSize int64) error {
	mounted, err := isMount(path)
	if err != nil || mounted {
		return err
	}
	k.step("mount hugetlbfs")
	if err := unix.Mount("nodev", path, "hugetlbfs", 0, fmt.Sprintf("pagesize=%d", pageSize)); err != nil {
		return fmt.Errorf("mounting hugetlbfs with pages of %d bytes: %w", pageSize, err)
	}
	return nil
}

// mountsBelow lists mount points at or below dir, innermost and newest first.
func mountsBelow(dir string) ([]*mountinfo.Info, error) {
	// The kernel prints resolved paths.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("reading mounts: %w", err)
	}
	for i, j := 0, len(mounts)-1; i < j; i, j = i+1, j-1 {
		mounts[i], mounts[j] = mounts[j], mounts[i]
	}
	sort.SliceStable(mounts, func(i, j int) bool {
		return strings.Count(mounts[i].Mountpoint, "/") > strings.Count(mounts[j].Mountpoint, "/")
	})
	return mounts, nil
}

// unmountBelow unmounts everything at or below dir. Memory file systems are
// detached even when a process of the host still looks at them, because their
// contents die with the pod; anything else that is busy is an error.
func (k kernel) unmountBelow(dir string) error {
	// Unmounting may uncover mounts that were hidden below.
	for range 8 {
		mounts, err := mountsBelow(dir)
		if err != nil || len(mounts) == 0 {
			return err
		}
		var errs []error
		for _, m := range mounts {
			errs = append(errs, k.unmount(m.Mountpoint, m.FSType == "tmpfs"))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return fmt.Errorf("unmounting below %s: mounts keep appearing", dir)
}

func (k kernel) unmount(path string, detach bool) error {
	k.step("unmount")
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) && detach {
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	// Not a mount any more, or gone with its parent: what was wanted.
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: "umount", Path: path, Err: err}
}

// errMounted says that a removal met a mount and stopped there.
var errMounted = errors.New("a file system is still mounted below")

// removeTree deletes path and what lies below it on the same mount. The kernel
// refuses the step into any other mount, even a bind mount of the same file
// system that appears while the removal runs, so nothing is ever deleted
// through a mount.
func (k kernel) removeTree(path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	if err := k.removeAt(parent, filepath.Base(path)); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

func (k kernel) removeAt(parent int, name string) error {
	k.step("remove")
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s: %w", name, errMounted)
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w", name, err)
	}
	dir, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%s: %w", name, errMounted)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f := os.NewFile(uintptr(dir), name)
	defer f.Close()
	entries, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	for _, e := range entries {
		if err := k.removeAt(dir, e); err != nil {
			errs = append(errs, fmt.Errorf("%s/%w", name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	k.step("rmdir")
	err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s: %w", name, errMounted)
	}
	return fmt.Errorf("%s: %w", name, err)
}
