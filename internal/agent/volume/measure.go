package volume

import (
	"context"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// Size is how large and how full a volume is, in bytes and files. A number
// that the driver does not tell is 0.
type Size struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Measure returns how to ask the driver of a pod's volume for its size. The
// function is nil when the driver cannot tell; ok is false for volumes without
// a driver, which the file system itself knows about.
func (m *Manager) Measure(uid types.UID, volume string) (ask func(ctx context.Context) (Size, error), ok bool) {
	for _, dir := range subdirs(m.layout.volume(uid, pluginCSI, "")) {
		r, err := readRecord(dir)
		if err != nil || r.Volume != volume {
			continue
		}
		dr, err := m.cfg.Drivers.get(r.Driver)
		if err != nil || !dr.can(spec.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
			return nil, true
		}
		return func(ctx context.Context) (Size, error) { return dr.measure(ctx, r) }, true
	}
	return nil, false
}

func (d *driver) measure(ctx context.Context, r *record) (Size, error) {
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	answer, err := d.node.NodeGetVolumeStats(ctx, &spec.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: r.Target,
		StagingTargetPath: r.Staging})
	if err != nil {
		return Size{}, fmt.Errorf("asking CSI driver %q for the size of volume %s: %w", d.name, r.Handle, err)
	}
	return sizeOf(answer.GetUsage())
}

// sizeOf reads a driver's answer; numbers below zero make it worthless.
func sizeOf(usage []*spec.VolumeUsage) (Size, error) {
	var s Size
	for _, u := range usage {
		if u.GetTotal() < 0 || u.GetAvailable() < 0 || u.GetUsed() < 0 {
			return Size{}, fmt.Errorf("the driver answered with a negative number: total %d, available %d, used %d", u.GetTotal(),
				u.GetAvailable(), u.GetUsed())
		}
		switch u.GetUnit() {
		case spec.VolumeUsage_BYTES:
			s.Capacity, s.Available, s.Used = uint64(u.GetTotal()), uint64(u.GetAvailable()), uint64(u.GetUsed())
		case spec.VolumeUsage_INODES:
			s.Inodes, s.InodesFree, s.InodesUsed = uint64(u.GetTotal()), uint64(u.GetAvailable()), uint64(u.GetUsed())
		}
	}
	return s, nil
}
