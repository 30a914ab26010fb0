package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
)

// maxManifest bounds one manifest file and one answer of a URL.
const maxManifest = 10 << 20

// runFiles follows a manifest file or directory: inotify reports changes, a
// slow look is the net under it (and all there is while the path is missing).
func (s *set) runFiles(ctx context.Context) {
	period := s.cfg.PathPeriod
	if period <= 0 {
		period = 20 * time.Second
	}
	watcher, err := fsnotify.NewWatcher()
	var events chan fsnotify.Event
	if err != nil {
		s.cfg.Log.Warn("watching static pods, looking for changes periodically instead", "path", s.cfg.Path, "err", err)
	} else {
		defer watcher.Close()
		events = watcher.Events
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	if !s.awaitRuntime(ctx) {
		return
	}
	known := map[string]*manifest{}
	watched := false
	for {
		if watcher != nil && !watched {
			watched = watcher.Add(watchable(s.cfg.Path)) == nil
		}
		pods, err := s.readFiles(known)
		switch {
		case err == nil:
			s.replace("file", pods)
			s.reported("file")
		default:
			// Keep what runs: a path that cannot be read is not an empty one.
			s.cfg.Log.Error("reading static pods", "path", s.cfg.Path, "err", err)
		}
		if !s.awaitFiles(ctx, events, ticker.C, &watched) {
			return
		}
	}
}

// watchable is what inotify follows: the directory, also of a single file,
// because editors replace files.
func watchable(path string) string {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return path
	}
	return filepath.Dir(path)
}

// awaitFiles returns when something below the path may have changed, false
// when ctx ended. Events that arrive together are one.
func (s *set) awaitFiles(ctx context.Context, events <-chan fsnotify.Event, tick <-chan time.Time, watched *bool) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick:
		return true
	case e := <-events:
		if e.Has(fsnotify.Remove) && filepath.Clean(e.Name) == filepath.Clean(s.cfg.Path) {
			*watched = false
		}
	}
	settle := time.NewTimer(10 * time.Millisecond)
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-events:
		case <-settle.C:
			return true
		}
	}
}

// manifest is a file as it was read last.
type manifest struct {
	data string
	pods []*v1.Pod
}

// readFiles reads all manifests. A file that is broken keeps the pod it held
// when it was last right.
func (s *set) readFiles(known map[string]*manifest) ([]*v1.Pod, error) {
	st, err := os.Stat(s.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		clear(known)
		s.keepIdentities("file", nil)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at the static pod path: %w", err)
	}
	paths := []string{s.cfg.Path}
	if st.IsDir() {
		entries, err := os.ReadDir(s.cfg.Path)
		if err != nil {
			return nil, fmt.Errorf("listing static pods: %w", err)
		}
		paths = nil
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			p := filepath.Join(s.cfg.Path, e.Name())
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
				paths = append(paths, p)
			}
		}
		slices.Sort(paths)
	}
	var pods []*v1.Pod
	for _, p := range paths {
		m, err := s.readFile(p, known[p])
		if err != nil {
			s.cfg.Log.Error("reading a static pod", "file", p, "err", err)
		}
		if m != nil {
			known[p] = m
			pods = append(pods, m.pods...)
		}
	}
	keys := make([]string, 0, len(paths))
	for _, p := range paths {
		keys = append(keys, "file:"+p)
	}
	s.keepIdentities("file", keys)
	for p := range known {
		if !slices.Contains(paths, p) {
			delete(known, p)
		}
	}
	return pods, nil
}

func (s *set) readFile(path string, before *manifest) (*manifest, error) {
	st, err := os.Stat(path)
	if err != nil {
		return before, err
	}
	if st.Size() > maxManifest {
		return before, fmt.Errorf("it has %d bytes, allowed are %d", st.Size(), maxManifest)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return before, err
	}
	if before != nil && before.data == string(data) {
		return before, nil
	}
	if n, err := documents(data); err != nil || n != 1 {
		return before, errors.Join(err, fmt.Errorf("it holds %d objects, allowed is one", n))
	}
	from := &origin{node: s.cfg.NodeName, kind: "file", place: path, seen: s.cfg.Now(), changed: st.ModTime(), ids: s.ids}
	pods, err := parse(data, from, false)
	if err != nil {
		return before, err
	}
	return &manifest{data: string(data), pods: pods}, nil
}
