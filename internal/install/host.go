package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Host is where berth is installed.
type Host struct {
	// Root is in front of every path: "/" for this host.
	Root string
	// Run runs a program of the host.
	Run func(ctx context.Context, program string, args ...string) error
	// Out gets a line for everything that is done.
	Out io.Writer
}

// installed is what an installation remembers, for the uninstallation.
type installed struct {
	Role    string `json:"role"`
	Init    string `json:"init,omitempty"`
	DataDir string `json:"dataDir"`
	// Files and Dirs were made by it; Dirs are parents before children.
	Files []string `json:"files"`
	Dirs  []string `json:"dirs,omitempty"`
	// Kubeconfigs have contexts of ours.
	Kubeconfigs []kubeconfigEntry `json:"kubeconfigs,omitempty"`
}

// Init is the service manager that runs below root: systemd, openrc, or empty.
func (h Host) Init() string {
	switch {
	case exists(h.path("/run/systemd/system")):
		return "systemd"
	case exists(h.path("/sbin/openrc-run")) && exists(h.path("/run/openrc")):
		return "openrc"
	}
	return ""
}

func (h Host) path(p string) string { return filepath.Join(h.Root, p) }

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// Programs lists the files of a bundle, relative to it. Only berth itself is
// needed; a server runs nothing else.
func Programs(bundle string) (out []string, err error) {
	err = filepath.WalkDir(bundle, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(bundle, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && rel != "." && rel != "images":
			return fs.SkipDir // not of the bundle: build trees have programs of tests here
		case !d.IsDir():
			out = append(out, rel)
		}
		return nil
	})
	if err == nil && !slices.Contains(out, "berth") {
		err = fmt.Errorf("there is no program berth in %s", bundle)
	}
	if err != nil {
		return nil, fmt.Errorf("--bundle-dir: %w", err)
	}
	return out, nil
}

// Write makes the files of a plan, and says whether anything changed. What it
// makes is remembered first, so that an end in between leaves nothing unknown.
func (h Host) Write(files []fileSpec, role, init, dataDir string) (changed bool, err error) {
	rec, err := h.read()
	if err != nil {
		return false, err
	}
	if rec.DataDir != "" && rec.DataDir != dataDir {
		return false, fmt.Errorf("berth is installed here with the data directory %s: uninstall it before it gets another one (%s)",
			rec.DataDir,
			dataDir)
	}
	if rec.Role != "" && rec.Role != role {
		return false, fmt.Errorf("berth is installed here as `berth %s`: uninstall it before it becomes `berth %s`", rec.Role, role)
	}
	rec.Role, rec.Init, rec.DataDir = role, init, dataDir
	for _, f := range append([]fileSpec{{Path: recordFile}}, files...) {
		h.remember(&rec, f.Path)
	}
	if err := h.save(rec); err != nil {
		return false, err
	}
	for _, f := range files {
		did, err := h.put(f)
		if err != nil {
			return changed, fmt.Errorf("installing %s: %w", f.Path, err)
		}
		word := "unchanged"
		if did {
			word, changed = "wrote", true
		}
		fmt.Fprintf(h.Out, "%-10s %s\n", word, f.Path)
	}
	return changed, nil
}

// remember notes a path, and the directories above it that are not there yet.
func (h Host) remember(rec *installed, path string) {
	if path != recordFile && !slices.Contains(rec.Files, path) {
		rec.Files = append(rec.Files, path)
	}
	var missing []string
	for dir := filepath.Dir(path); dir != "/" && !exists(h.path(dir)); dir = filepath.Dir(dir) {
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	for _, dir := range missing {
		if !slices.Contains(rec.Dirs, dir) {
			rec.Dirs = append(rec.Dirs, dir)
		}
	}
}

func (h Host) read() (rec installed, err error) {
	text, err := os.ReadFile(h.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		return rec, fmt.Errorf("reading what is installed: %w", err)
	}
	return rec, nil
}

func (h Host) save(rec installed) error {
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	_, err = h.put(fileSpec{Path: recordFile, Mode: 0o600, Text: string(text) + "\n"})
	return err
}

// put makes one file, unless it is there already. It replaces a file as a
// whole: a program that runs may not be written to.
func (h Host) put(f fileSpec) (changed bool, err error) {
	to := h.path(f.Path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, err
	}
	tmp := to + ".new"
	defer os.Remove(tmp)
	switch {
	case f.Target != "":
		if have, err := os.Readlink(to); err == nil && have == f.Target {
			return false, nil
		}
		if err := os.Symlink(f.Target, tmp); err != nil {
			return false, err
		}
	case f.Source != "":
		if same, err := sameFile(f.Source, to); err != nil || same {
			return false, err
		}
		if err := copyFile(f.Source, tmp); err != nil {
			return false, err
		}
	default:
		st, statErr := os.Lstat(to)
		if have, err := os.ReadFile(to); err == nil && statErr == nil && string(have) == f.Text && st.Mode() == f.Mode {
			return false, nil
		}
		if err := os.WriteFile(tmp, []byte(f.Text), f.Mode); err != nil {
			return false, err
		}
		if err := os.Chmod(tmp, f.Mode); err != nil {
			return false, err
		}
	}
	return true, os.Rename(tmp, to)
}

// sameFile says whether a file is a copy of another one, or that one itself.
func sameFile(from, to string) (bool, error) {
	a, err := os.Stat(from)
	if err != nil {
		return false, err
	}
	b, err := os.Stat(to)
	if err != nil || os.SameFile(a, b) {
		return err == nil, nil
	}
	if a.Size() != b.Size() || a.Mode() != b.Mode() {
		return false, nil
	}
	return equalContent(from, to)
}

func equalContent(from, to string) (bool, error) {
	a, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := os.Open(to)
	if err != nil {
		return false, err
	}
	defer b.Close()
	const size = 1 << 20
	left, right := make([]byte, size), make([]byte, size)
	for {
		n, err := io.ReadFull(a, left)
		m, err2 := io.ReadFull(b, right)
		if !bytes.Equal(left[:n], right[:m]) {
			return false, nil
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		case err != nil || err2 != nil:
			return false, errors.Join(err, err2)
		}
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, st.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Chmod(st.Mode().Perm()); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// Start enables the service and starts it, or restarts it if something changed.
func (h Host) Start(ctx context.Context, init string, changed bool) error {
	commands := map[string][][]string{
		"systemd": {{"systemctl", "daemon-reload"}, {"systemctl", "enable", "berth.service"}, {"systemctl", "start", "berth.service"}},
		"openrc":  {{"rc-update", "add", "berth", "default"}, {"rc-service", "berth", "start"}},
	}[init]
	if changed {
		last := slices.Clone(commands[len(commands)-1])
		last[slices.Index(last, "start")] = "restart"
		commands[len(commands)-1] = last
	}
	return h.runAll(ctx, commands)
}

func (h Host) runAll(ctx context.Context, commands [][]string) error {
	for _, c := range commands {
		fmt.Fprintf(h.Out, "%-10s %s\n", "run", strings.Join(c, " "))
		if err := h.Run(ctx, c[0], c[1:]...); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(c, " "), err)
		}
	}
	return nil
}
