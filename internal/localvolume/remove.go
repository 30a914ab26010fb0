package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-dev/berth/internal/controller"
)

// discard moves a folder to the trash, from where the cleaner removes it. It
// is gone for everybody once this returns.
func (d *Driver) discard(dir string) error {
	for n := 0; ; n++ {
		to := filepath.Join(d.path("trash"), fmt.Sprintf("%s-%d", filepath.Base(dir), n))
		err := os.Rename(dir, to)
		switch {
		case err == nil:
			select {
			case d.dirty <- struct{}{}:
			default:
			}
			return nil
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
}

// clean empties the trash whenever something is put there, until ctx ends. What
// cannot be removed is tried again later.
func (d *Driver) clean(ctx context.Context) {
	failed := controller.Retry{Backoff: controller.Backoff{First: time.Second, Most: 5 * time.Minute}}
	for {
		var retry <-chan time.Time
		if err := d.empty(ctx); err != nil {
			wait := failed.Failed()
			d.cfg.Log.Warn("removing the data of deleted volumes", "err", err, "retry", wait)
			retry = time.After(wait)
		} else {
			failed.Succeeded()
		}
		select {
		case <-ctx.Done():
			return
		case <-d.dirty:
		case <-retry:
		}
	}
}

// empty removes what is in the trash. Names below it are those a pod chose:
// they are removed one directory handle at a time, no link is followed, and
// nothing is touched while something is mounted there.
func (d *Driver) empty(ctx context.Context) error {
	root, err := os.OpenRoot(d.path("trash"))
	if err != nil {
		return err
	}
	defer root.Close()
	entries, err := os.ReadDir(d.path("trash"))
	if err != nil {
		return err
	}
	var all error
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil
		}
		at := filepath.Join(d.path("trash"), e.Name())
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(at))
		if err == nil && len(mounts) > 0 {
			err = fmt.Errorf("%s is still mounted", mounts[0].Mountpoint)
		}
		if err == nil {
			err = root.RemoveAll(e.Name())
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("volume %s: %w", e.Name(), err))
		}
	}
	return all
}
