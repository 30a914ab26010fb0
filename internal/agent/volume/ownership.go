package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

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

// apply walks dir without following links or leaving its device. The root is
// done last, so that an interrupted walk is seen as a mismatch and redone.
func (o *ownership) apply(dir string) error {
	if o == nil {
		return nil
	}
	root, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if o.onRootMismatch && o.matches(root) {
		return nil
	}
	device := deviceOf(root)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we walk
		}
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if deviceOf(info) != device {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return o.give(path, info)
	})
	if err == nil {
		err = o.give(dir, root)
	}
	if err != nil {
		return fmt.Errorf("giving the volume to group %d: %w", o.group, err)
	}
	return nil
}

func (o *ownership) give(path string, info fs.FileInfo) error {
	if err := os.Lchown(path, -1, int(o.group)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // a link's mode means nothing, and chmod would follow it
	}
	mode := info.Mode()
	// Changing the owner clears setuid and setgid of files; keep what was set.
	want := mode.Perm() | mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | o.mask(info.IsDir())
	if err := os.Chmod(path, want); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
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
