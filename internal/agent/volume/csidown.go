package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// unpublishPod takes down all CSI volumes of a pod, from their records.
func (c *csi) unpublishPod(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, dir := range subdirs(filepath.Dir(c.volumeDir(uid, "x"))) {
		if err := c.unpublish(ctx, uid, dir); err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", filepath.Base(dir), err))
		}
	}
	return errors.Join(errs...)
}

func (c *csi) unpublish(ctx context.Context, uid types.UID, dir string) error {
	r, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the driver was never asked
	}
	if err != nil {
		return err
	}
	if err := r.within(c.m.cfg.RootDir); err != nil {
		return err
	}
	release, err := c.hold(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	dr, err := c.m.cfg.Drivers.get(r.Driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	c.m.k.step("unpublish volume")
	if _, err := dr.node.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: r.Target}); err != nil {
		return &eventError{reason: "FailedUnmount", format: "UnmountVolume.TearDown failed for volume %q : %v", err: err}
	}
	if err := c.m.k.removeTree(r.Target); err != nil {
		return err // still mounted: the driver did not do what it said
	}
	if r.Block {
		_ = os.Remove(filepath.Dir(r.Target)) // goes with the last pod's device
	}
	c.m.k.step("remove record")
	if err := os.Remove(filepath.Join(dir, volData)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer c.m.inUseChanged()
	if r.Staging == "" {
		return nil
	}
	return c.unstageIfUnused(ctx, dr, r)
}

// unstageIfUnused unstages a volume that no pod on this node has. The volume's
// lock is held.
func (c *csi) unstageIfUnused(ctx context.Context, dr *driver, r *record) error {
	if c.used(r) {
		return nil
	}
	c.m.k.step("unstage volume")
	if _, err := dr.node.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: r.Handle,
		StagingTargetPath: r.Staging}); err != nil {
		return &eventError{reason: "FailedUnmount", format: "UnmountVolume.UnmountDevice failed for volume %q : %v", err: err}
	}
	if err := c.m.k.removeTree(r.Staging); err != nil {
		return err
	}
	return c.m.k.removeTree(c.stagingDir(r))
}

// used says whether some pod on disk has a volume.
func (c *csi) used(r *record) bool {
	for _, pod := range subdirs(c.m.layout.pods()) {
		for _, dir := range subdirs(filepath.Join(pod, "volumes", escape(pluginCSI))) {
			if o, err := readRecord(dir); err == nil && o.Driver == r.Driver && o.Handle == r.Handle {
				return true
			}
		}
	}
	return false
}

// unstageUnused unstages what a crash left staged for no one. Volumes of
// drivers that are not here wait until theirs registers.
func (c *csi) unstageUnused(ctx context.Context) error {
	var errs []error
	for _, driverDir := range subdirs(c.m.layout.csiPluginDir()) {
		for _, dir := range subdirs(driverDir) {
			r, err := readRecord(dir)
			if err != nil {
				continue // a driver's own directory
			}
			if _, err := c.m.cfg.Drivers.get(r.Driver); err != nil {
				continue
			}
			if err := c.unstageOne(ctx, r); err != nil {
				errs = append(errs, fmt.Errorf("unstaging volume %s of driver %s: %w", r.Handle, r.Driver, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (c *csi) unstageOne(ctx context.Context, r *record) error {
	if err := r.within(c.m.cfg.RootDir); err != nil {
		return err
	}
	release, err := c.hold(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	if c.used(r) {
		return nil
	}
	dr, err := c.m.cfg.Drivers.get(r.Driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	return c.unstageIfUnused(ctx, dr, r)
}
