package volume

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataDir    = "..data"
	dataTmp    = "..data_tmp"
	dirPattern = "..2006_01_02_15_04_05."
)

// file is one file of a volume's contents.
type file struct {
	data []byte
	mode fs.FileMode
	// uid owns the file when set; else root.
	uid *int64
}

// payload maps relative paths to files.
type payload map[string]file

// writer replaces the contents of a directory so that a reader sees the old
// files or the new ones, all of them: files live in a dated directory, "..data"
// points to it, and each visible name is a link through "..data". One rename
// of "..data" changes them all.
type writer struct {
	k   kernel
	dir string
	now func() time.Time
	// own is called on the new directory before it becomes visible.
	own func(dir string) error
}

// checkPayload refuses paths that would leave the directory or collide with
// the writer's own names.
func checkPayload(p payload) error {
	for name := range p {
		switch {
		case name == "" || len(name) > 4096:
			return fmt.Errorf("invalid path %q: must have 1 to 4096 characters", name)
		case !filepath.IsLocal(name) || filepath.Clean(name) != name:
			return fmt.Errorf("invalid path %q: must be relative and clean, without \"..\"", name)
		case strings.HasPrefix(name, ".."):
			return fmt.Errorf("invalid path %q: must not start with \"..\"", name)
		}
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			if _, ok := p[dir]; ok {
				return fmt.Errorf("conflicting paths %q and %q: one is a file, the other needs it as a directory", dir, name)
			}
		}
		for _, e := range strings.Split(name, "/") {
			if len(e) > 255 {
				return fmt.Errorf("invalid path %q: an element has more than 255 characters", name)
			}
		}
	}
	return nil
}

// write makes the directory hold exactly p and says whether anything changed.
// It may be interrupted anywhere; the next call cleans up.
func (w writer) write(p payload) (bool, error) {
	if err := checkPayload(p); err != nil {
		return false, err
	}
	current, err := os.Readlink(filepath.Join(w.dir, dataDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading %s: %w", dataDir, err)
	}
	changed := current == "" || !w.same(current, p)
	if changed {
		// What a crash left must not take the room that the next version needs.
		if err := w.sweep(current); err != nil {
			return false, err
		}
		next, err := w.stage(p)
		if err != nil {
			return false, errors.Join(err, w.sweep(current))
		}
		if err := w.publish(next); err != nil {
			return false, err
		}
		current = next
	}
	if err := w.link(p); err != nil {
		return changed, err
	}
	return changed, w.clean(current, p)
}

// same compares what "..data" shows with p: names and bytes. Modes follow from
// the pod spec, which does not change.
func (w writer) same(current string, p payload) bool {
	base := filepath.Join(w.dir, current)
	seen := 0
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		want, ok := p[rel]
		if !ok {
			return errDiffers
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want.data) {
			return errDiffers
		}
		seen++
		return nil
	})
	return err == nil && seen == len(p)
}

var errDiffers = errors.New("differs")

// stage writes p into a new dated directory.
func (w writer) stage(p payload) (string, error) {
	var suffix [4]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return "", err
	}
	name := w.now().UTC().Format(dirPattern) + hex.EncodeToString(suffix[:])
	base := filepath.Join(w.dir, name)
	w.k.step("stage dir")
	if err := os.Mkdir(base, 0o755); err != nil {
		return "", fmt.Errorf("making %s: %w", name, err)
	}
	// Not cut by the umask: any user of the pod may look.
	if err := os.Chmod(base, 0o755); err != nil {
		return "", err
	}
	for _, rel := range sortedNames(p) {
		f := p[rel]
		path := filepath.Join(base, rel)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		w.k.step("stage file")
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return "", err
		}
		if err := os.Chmod(path, f.mode); err != nil {
			return "", err
		}
		if f.uid != nil {
			if err := os.Lchown(path, int(*f.uid), -1); err != nil {
				return "", err
			}
		}
	}
	if w.own != nil {
		w.k.step("own")
		if err := w.own(base); err != nil {
			return "", err
		}
	}
	return name, nil
}

// publish swings "..data" to name.
func (w writer) publish(name string) error {
	tmp := filepath.Join(w.dir, dataTmp)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w.k.step("link data")
	if err := os.Symlink(name, tmp); err != nil {
		return err
	}
	w.k.step("swap data")
	return os.Rename(tmp, filepath.Join(w.dir, dataDir))
}

// link makes the visible names.
func (w writer) link(p payload) error {
	for _, top := range topNames(p) {
		path := filepath.Join(w.dir, top)
		target := filepath.Join(dataDir, top)
		if got, err := os.Readlink(path); err == nil && got == target {
			continue
		}
		w.k.step("link")
		if err := os.Symlink(target, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// sweep removes directories that nothing points to.
func (w writer) sweep(current string) error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") && e.IsDir() && e.Name() != current {
			errs = append(errs, w.k.removeTree(filepath.Join(w.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// clean removes names that p no longer has and what interrupted writes left.
func (w writer) clean(current string, p payload) error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	keep := map[string]bool{dataDir: true}
	for _, top := range topNames(p) {
		keep[top] = true
	}
	var errs []error
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		if e.Name() == dataTmp || e.Type()&fs.ModeSymlink != 0 && !strings.HasPrefix(e.Name(), "..") {
			w.k.step("unlink")
			if err := unix.Unlink(filepath.Join(w.dir, e.Name())); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, w.sweep(current))...)
}

func topNames(p payload) []string {
	seen := map[string]bool{}
	var out []string
	for _, name := range sortedNames(p) {
		top, _, _ := strings.Cut(name, "/")
		if !seen[top] {
			seen[top] = true
			out = append(out, top)
		}
	}
	return out
}

func sortedNames(p payload) []string {
	out := make([]string, 0, len(p))
	for name := range p {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
