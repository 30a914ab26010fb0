package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Purge removes all volumes and snapshots of a directory, whatever uses them,
// and the directory if nothing else is in it. It is for a node that is no more.
func Purge(dir string) error {
	d := &Driver{cfg: Config{Dir: dir}, dirty: make(chan struct{}, 1)}
	entries, err := os.ReadDir(d.path("volumes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing local volumes: %w", err)
	}
	var errs []error
	for _, e := range entries {
		at := d.path("volumes", e.Name())
		r, err := readRecord(at)
		if err != nil {
			continue // nothing that was ever used
		}
		for _, p := range r.Published {
			errs = append(errs, unbind(p.Target))
		}
		errs = append(errs, d.rest(at, r))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing local volumes: %w", err)
	}
	for _, f := range folders {
		if f == "trash" {
			continue
		}
		if err := d.discard(d.path(f)); err != nil {
			return fmt.Errorf("removing local volumes: %w", err)
		}
	}
	if err := d.empty(context.Background()); err != nil {
		return fmt.Errorf("removing local volumes: %w", err)
	}
	_ = os.Remove(d.path("trash"))
	_ = os.Remove(filepath.Clean(dir))
	return nil
}
