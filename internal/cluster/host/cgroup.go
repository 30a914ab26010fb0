package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveCgroup removes the cgroup sub-tree name from every hierarchy below
// mount (usually /sys/fs/cgroup), deepest first, and kills what still runs in
// it. A sub-tree that is not there is success. Only names that berth made may
// be given: an empty or relative name is refused.
func RemoveCgroup(mount, name string) error {
	clean := strings.TrimPrefix(filepath.Clean(name), "/")
	if clean == "" || !filepath.IsLocal(clean) || clean == "." {
		return fmt.Errorf("removing cgroup %q: this is not a sub-tree of ours", name)
	}
	tops := []string{filepath.Join(mount, clean)}
	entries, err := os.ReadDir(mount)
	if err != nil {
		return fmt.Errorf("removing cgroup %s: %w", name, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			tops = append(tops, filepath.Join(mount, e.Name(), clean))
		}
	}
	var errs []error
	for _, top := range tops {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
			continue
		}
		if err := removeTree(top); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("listing cgroup %s: %w", top, err)
	}
	slices.Reverse(dirs)
	for waited := 0; ; waited++ {
		left, err := removeAll(dirs)
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(dirs) {
			waited = 0
		}
		if dirs = left; waited == patience || !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("removing cgroup %s: %w", left[0], err)
		}
		for _, dir := range dirs {
			killMembers(dir)
		}
		time.Sleep(look)
	}
}

// A killed process leaves its cgroup a moment after the signal: seconds, where
// the host ends hundreds at once. So what is left is looked at again until
// nothing has gone for look times patience.
const (
	look     = 20 * time.Millisecond
	patience = 500
)

// removeAll removes those of some directories that are empty and gives back
// the others, and why the first of them stays.
func removeAll(dirs []string) (left []string, why error) {
	for _, dir := range dirs {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			if left = append(left, dir); why == nil {
				why = err
			}
		}
	}
	return left, why
}

func killMembers(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, word := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(word); err == nil {
			unix.Kill(pid, unix.SIGKILL) //nolint:errcheck // it may have ended already
		}
	}
}
