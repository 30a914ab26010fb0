package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	clean := strings.Trim(filepath.Clean(name), "/.")
	if clean == "" || strings.HasPrefix(clean, "..") {
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
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := removeOne(dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

// removeOne kills the members and removes the directory. A killed process
// leaves its cgroup a moment after the signal, hence the few tries.
func removeOne(dir string) error {
	var err error
	for range 50 {
		if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, word := range strings.Fields(string(data)) {
			if pid, perr := strconv.Atoi(word); perr == nil {
				unix.Kill(pid, unix.SIGKILL) //nolint:errcheck // it may have ended already
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("removing cgroup %s: %w", dir, err)
}
