// Package logs keeps container logs within their bounds: it renames a log that
// has grown too large, has the runtime open a new one, packs what was renamed
// before, and drops the oldest.
package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// stampLayout is the suffix of a rotated log.
const stampLayout = "20060102-150405"

// Log is the log of one running container.
type Log struct {
	ContainerID, Path string
}

// Config configures a Rotator. Running, Reopen and Log are required.
type Config struct {
	// MaxSize in bytes at which a log is rotated; zero or less never.
	MaxSize int64
	// MaxFiles a container may keep, the live one included; at least 2.
	MaxFiles int
	// Interval between looks (10 s when zero). A file system does not tell when
	// a file reaches a size; looking costs one stat per running container.
	Interval time.Duration
	// Workers is how many logs are rotated at a time (1 when zero).
	Workers int
	// Running lists the logs of running containers.
	Running func() []Log
	// Reopen makes the runtime write to a new file at the container's path.
	Reopen func(ctx context.Context, containerID string) error
	Log    *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Run rotates logs until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.MaxSize <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	if cfg.MaxFiles < 2 {
		return fmt.Errorf("rotating container logs: at most %d files per container, allowed are 2 or more", cfg.MaxFiles)
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 10 * time.Second
	}
	ticker := time.NewTicker(cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			pass(ctx, cfg)
		}
	}
}

// pass looks at every log once.
func pass(ctx context.Context, cfg Config) {
	limit := make(chan struct{}, max(cfg.Workers, 1))
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, l := range cfg.Running() {
		st, err := os.Stat(l.Path)
		if err != nil || st.Size() < cfg.MaxSize {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case limit <- struct{}{}:
		}
		wg.Go(func() {
			defer func() { <-limit }()
			if err := rotate(ctx, cfg, l); err != nil && ctx.Err() == nil {
				cfg.Log.Warn("rotating a container's log", "path", l.Path, "err", err)
			}
		})
	}
}

// rotate makes room first, so that a full disk is not made worse.
func rotate(ctx context.Context, cfg Config, l Log) error {
	old, err := rotated(l.Path)
	if err != nil {
		return err
	}
	remove, pack := plan(old, cfg.MaxFiles)
	for _, f := range remove {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an old log: %w", err)
		}
	}
	for _, f := range pack {
		if err := compress(f); err != nil {
			return fmt.Errorf("packing an old log: %w", err)
		}
	}
	now := time.Now
	if cfg.Now != nil {
		now = cfg.Now
	}
	to := l.Path + "." + now().UTC().Format(stampLayout)
	if err := os.Rename(l.Path, to); err != nil {
		return fmt.Errorf("renaming the log: %w", err)
	}
	if err := cfg.Reopen(ctx, l.ContainerID); err != nil {
		// The runtime goes on writing to the renamed file: give it its name back.
		if rerr := os.Rename(to, l.Path); rerr != nil {
			return fmt.Errorf("naming the log back: %w", errors.Join(rerr, err))
		}
		return fmt.Errorf("reopening the log: %w", err)
	}
	return nil
}

// rotated lists a log's rotated files, oldest first. Leftovers of packing that
// was interrupted are removed.
func rotated(path string) ([]string, error) {
	found, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range found {
		suffix := strings.TrimPrefix(f, path+".")
		if strings.HasSuffix(suffix, ".tmp") {
			if err := os.Remove(f); err != nil {
				return nil, fmt.Errorf("removing what packing left behind: %w", err)
			}
			continue
		}
		if _, err := time.Parse(stampLayout, strings.TrimSuffix(suffix, ".gz")); err == nil {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	// Packing was interrupted between making the packed file and removing the
	// plain one: the packed one is whole.
	return slices.DeleteFunc(out, func(f string) bool {
		return !strings.HasSuffix(f, ".gz") && slices.Contains(out, f+".gz") && os.Remove(f) == nil
	}), nil
}

// plan decides what goes and what is packed when one more file is about to
// come. The live file and the one that is made now count.
func plan(old []string, maxFiles int) (remove, pack []string) {
	keep := max(maxFiles-2, 0)
	if n := len(old) - keep; n > 0 {
		remove, old = old[:n], old[n:]
	}
	for _, f := range old {
		if !strings.HasSuffix(f, ".gz") {
			pack = append(pack, f)
		}
	}
	return remove, pack
}

// compress packs a file; a reader finds the plain one or the whole packed one.
func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(out)
	_, err = io.Copy(w, in)
	err = errors.Join(err, w.Close(), out.Close())
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path+".gz"); err != nil {
		return err
	}
	return os.Remove(path)
}
