package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

const (
	rwFile = 0o660
	roFile = 0o440
	search = 0o110
)

// ownership gives a volume to the pod's group.
type ownership struct {
	group    int64
	readOnly bool
	// onRootMismatch skips the walk when the root already looks right.
	onRootMismatch bool
}

// podGroup is the ownership a pod asks for, nil without an fsGroup.
func podGroup(pod *v1.Pod, readOnly bool) *ownership {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	return &ownership{
		group: *sc.FSGroup, readOnly: readOnly,
		onRootMismatch: sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch,
	}
}

// apply gives dir and what is below it to the group, without following links
// or leaving its device. The root is done last, so that an interrupted walk is
// seen as a mismatch and redone.
//
// Pods may run on a shared volume meanwhile and swap its directories for links.
// Everything is therefore opened beneath the directory it was found in, and
// what was opened, not its name, is changed.
func (o *ownership) apply(dir string) error {
	if o == nil {
		return nil
	}
	root, info, err := openDir(dir, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer root.Close()
	if o.onRootMismatch && o.matches(info) {
		return nil
	}
	if err = o.walk(root, deviceOf(info)); err == nil {
		err = o.give(int(root.Fd()), info)
	}
	if err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", o.group, err)
	}
	return nil
}

// top gives a directory to the group, and nothing below it.
func (o *ownership) top(dir string) error {
	root, info, err := openDir(dir, unix.O_PATH)
	if err != nil {
		return err
	}
	defer root.Close()
	return o.give(int(root.Fd()), info)
}

// openDir opens a directory with a mode of access. The caller closes it.
func openDir(dir string, access int) (*os.File, fs.FileInfo, error) {
	fd, err := unix.Open(dir, access|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// entriesAtOnce bounds the names that a walk holds of one directory.
const entriesAtOnce = 1024

// walk changes what lies in an open directory, and below.
func (o *ownership) walk(dir *os.File, device uint64) error {
	for {
		names, err := dir.Readdirnames(entriesAtOnce)
		for _, name := range names {
			if err := o.one(dir, name, device); err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(dir.Name(), name), err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// one changes one entry of a directory, and what is below it.
func (o *ownership) one(dir *os.File, name string, device uint64) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed while we walk
	}
	if err != nil {
		return err
	}
	entry := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name))
	defer entry.Close()
	info, err := entry.Stat()
	if err != nil {
		return err
	}
	if deviceOf(info) != device {
		return nil
	}
	if info.IsDir() {
		inner, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		below := os.NewFile(uintptr(inner), entry.Name())
		defer below.Close()
		if err := o.walk(below, device); err != nil {
			return err
		}
	}
	return o.give(fd, info)
}

// give changes what a descriptor stands for.
func (o *ownership) give(fd int, info fs.FileInfo) error {
	if err := unix.Fchownat(fd, "", -1, int(o.group), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // a link's mode means nothing
	}
	mode := info.Mode()
	// Changing the owner clears setuid and setgid of files; keep what was set.
	want := mode.Perm() | mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | o.mask(info.IsDir())
	// A descriptor of O_PATH has no fchmod; this name leads to what it holds.
	return os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), want)
}

func (o *ownership) mask(dir bool) fs.FileMode {
	mask := fs.FileMode(rwFile)
	if o.readOnly {
		mask = roFile
	}
	if dir {
		mask |= search | fs.ModeSetgid
	}
	return mask
}

func (o *ownership) matches(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int64(st.Gid) != o.group {
		return false
	}
	want := o.mask(info.IsDir())
	return info.Mode()&want == want
}

func deviceOf(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}
