package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// stagedName is where a restore makes the new state, inside the data
	// directory; pendingName is there from the moment on which it counts.
	stagedName  = "restore.staged"
	pendingName = "restore.pending"
)

// replaced are the entries of a data directory that are a cluster's state. The
// kubeconfigs are made again at the start.
var replaced = []string{"etcd", "pki", SettingsName, ProviderConfigName, "admin.kubeconfig", "super-admin.kubeconfig"}

// exchange is what a restore still has to do after it counts. It is written to
// the data directory as one file, so that whatever starts next can finish it.
type exchange struct {
	// Aside gets what was there; empty if nothing was.
	Aside string `json:"aside"`
	// In come from the staging directory; Out only go.
	In  []string `json:"in"`
	Out []string `json:"out"`
}

// steps tells tests where a restore stands; nil in use.
type steps func(string)

func (s steps) at(name string) {
	if s != nil {
		s(name)
	}
}

// Pending says whether a restore was left in the middle.
func Pending(dataDir string) bool {
	for _, name := range []string{pendingName, stagedName} {
		if _, err := os.Lstat(filepath.Join(dataDir, name)); err == nil {
			return true
		}
	}
	return false
}

// Finish ends a restore that was left in the middle: one that counts already is
// completed, what another one prepared is removed. The caller holds the data
// directory's lock.
func Finish(dataDir string) error { return finish(dataDir, nil) }

func finish(dataDir string, at steps) error {
	file := filepath.Join(dataDir, pendingName)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return removeAll(dataDir, stagedName, pendingName+".new")
	}
	var e exchange
	if err == nil {
		err = strictJSON(data, &e)
	}
	if err != nil {
		return fmt.Errorf("finishing a restore: reading %s: %w", file, err)
	}
	if err := e.run(dataDir, at); err != nil {
		return fmt.Errorf("finishing a restore: %w", err)
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("finishing a restore: %w", err)
	}
	at.at("unmarked")
	return removeAll(dataDir, stagedName)
}

func removeAll(dir string, names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// commit makes a staged state count and puts it in place.
func commit(dataDir, aside string, at steps) error {
	staged := filepath.Join(dataDir, stagedName)
	if err := syncTree(staged); err != nil {
		return err
	}
	if err := syncDir(dataDir); err != nil {
		return err
	}
	e := exchange{Aside: aside}
	for _, name := range replaced {
		if _, err := os.Lstat(filepath.Join(staged, name)); err == nil {
			e.In = append(e.In, name)
		} else {
			e.Out = append(e.Out, name)
		}
	}
	at.at("staged")
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(dataDir, pendingName), data, 0o600); err != nil {
		return err
	}
	at.at("marked")
	return finish(dataDir, at)
}

// run moves what was there aside and the new state in. It may be run again from
// wherever it was stopped: an entry that is in the staging directory no more has
// its place already.
func (e *exchange) run(dataDir string, at steps) error {
	aside, staged := filepath.Join(dataDir, e.Aside), filepath.Join(dataDir, stagedName)
	if e.Aside != "" {
		if err := os.MkdirAll(aside, 0o700); err != nil {
			return err
		}
	}
	for _, name := range slices.Concat(e.In, e.Out) {
		arrives := slices.Contains(e.In, name)
		from := filepath.Join(staged, name)
		if arrives && !exists(from) {
			continue
		}
		to := filepath.Join(dataDir, name)
		if e.Aside == "" {
			_ = unix.Rmdir(to) // an empty directory is no state
		}
		if exists(to) {
			if e.Aside == "" {
				return fmt.Errorf("%s has appeared since the restore began: move it away and start again", to)
			}
			if err := rename(to, filepath.Join(aside, name)); err != nil {
				return err
			}
			at.at("aside " + name)
		}
		if arrives {
			if err := rename(from, to); err != nil {
				return err
			}
			at.at("in " + name)
		}
	}
	if e.Aside != "" {
		if err := syncDir(aside); err != nil {
			return err
		}
	}
	return syncDir(dataDir)
}

// rename never replaces anything.
func rename(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("moving %s to %s: %w", from, to, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writeSynced writes a file that is there whole, after a power loss too.
func writeSynced(file string, data []byte, mode os.FileMode) error {
	tmp := file + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}

// syncTree writes every file and directory below dir to disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return fmt.Errorf("writing %s to disk: %w", path, err)
		}
		return nil
	})
}

// movable refuses entries that a rename cannot move: those that are mounted.
func movable(dataDir string) error {
	var top unix.Stat_t
	if err := unix.Stat(dataDir, &top); err != nil {
		return err
	}
	for _, name := range replaced {
		path := filepath.Join(dataDir, name)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil && st.Dev != top.Dev {
			return fmt.Errorf("%s is a mount of its own, which cannot be moved aside: unmount it, restore, and move the new %s onto it",
				path,
				name)
		}
	}
	return nil
}

func sortedNames[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), strings.Compare)
}
