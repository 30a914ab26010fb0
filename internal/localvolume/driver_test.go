package localvolume

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fakeQuota stands for a filesystem with project quotas.
type fakeQuota struct {
	mu     sync.Mutex
	limits map[uint32]int64
	usage  map[uint32]int64
}

func (f *fakeQuota) works(string) bool { return true }
func (f *fakeQuota) limit(_ string, project uint32, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits[project] = bytes
	return nil
}
func (f *fakeQuota) used(_ string, project uint32) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.usage[project], nil
}

func open(t *testing.T, dir string) *Driver {
	t.Helper()
	d, err := Open(Config{Dir: dir, Node: "n1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var mounted = []*spec.VolumeCapability{{
	AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
	AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
}}

func (d *Driver) mustCreate(t *testing.T, name string, bytes int64, kind Kind) *spec.Volume {
	t.Helper()
	got, err := d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{Name: name, VolumeCapabilities: mounted,
		CapacityRange: &spec.CapacityRange{RequiredBytes: bytes}, Parameters: map[string]string{TypeParameter: string(kind)}})
	if err != nil {
		t.Fatal(err)
	}
	return got.Volume
}

func mustPublish(t *testing.T, d *Driver, id, target string) {
	t.Helper()
	if _, err := d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{VolumeId: id, TargetPath: target,
		VolumeCapability: mounted[0]}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
}

// TestRefusals: what cannot be is refused with the code that provisioners act
// by, and names nothing outside.
func TestRefusals(t *testing.T) {
	d := open(t, t.TempDir())
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	create := func(change func(*spec.CreateVolumeRequest)) error {
		req := &spec.CreateVolumeRequest{Name: "v", VolumeCapabilities: mounted}
		change(req)
		_, err := d.CreateVolume(t.Context(), req)
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"parameter": {create(func(r *spec.CreateVolumeRequest) { r.Parameters = map[string]string{"path": "/etc"} }),
			codes.InvalidArgument},
		"type": {create(func(r *spec.CreateVolumeRequest) { r.Parameters = map[string]string{"type": "nfs"} }), codes.InvalidArgument},
		"many nodes": {create(func(r *spec.CreateVolumeRequest) {
			r.VolumeCapabilities = []*spec.VolumeCapability{{AccessType: mounted[0].AccessType,
				AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}}}
		}), codes.InvalidArgument},
		"other node": {create(func(r *spec.CreateVolumeRequest) {
			r.AccessibilityRequirements = &spec.TopologyRequirement{
				Requisite: []*spec.Topology{{Segments: map[string]string{TopologyKey: "n2"}}}}
		}), codes.ResourceExhausted},
		"too large": {create(func(r *spec.CreateVolumeRequest) { r.CapacityRange = &spec.CapacityRange{RequiredBytes: 1 << 60} }),
			codes.ResourceExhausted},
		"snapshot above": {create(func(r *spec.CreateVolumeRequest) {
			r.VolumeContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
				Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: "../../outside"}}}
		}), codes.NotFound},
		"publish above": {func() error {
			_, err := d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{VolumeId: "../../outside", TargetPath: outside + "-t",
				VolumeCapability: mounted[0]})
			return err
		}(), codes.NotFound},
		"snapshot of nothing": {func() error {
			_, err := d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "s", SourceVolumeId: "nothing"})
			return err
		}(), codes.NotFound},
	} {
		if status.Code(c.err) != c.want {
			t.Errorf("%s: %v, want %s", name, c.err, c.want)
		}
	}
	// Deleting what cannot be one of ours is deleting nothing.
	for _, id := range []string{"../../outside", "..", ".", "/etc", "volumes/../.."} {
		if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Errorf("deleting %q: %v", id, err)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	for _, folder := range []string{"volumes", "making"} {
		if left, _ := os.ReadDir(d.path(folder)); len(left) > 0 {
			t.Errorf("%s holds %v", folder, left)
		}
	}
}

// TestDirectory follows a volume from its making to its end.
func TestDirectory(t *testing.T) {
	needRoot(t)
	d := open(t, t.TempDir())
	v := d.mustCreate(t, "pvc-1", 10<<20, Directory)
	if again := d.mustCreate(t, "pvc-1", 10<<20, Directory); again.VolumeId != v.VolumeId {
		t.Errorf("asked again: %v, then %v", v, again)
	}
	if _, err := d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: mounted,
		CapacityRange: &spec.CapacityRange{RequiredBytes: 20 << 20}}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same name and another size: %v", err)
	}
	target := filepath.Join(t.TempDir(), "pod", "mount")
	mustPublish(t, d, v.VolumeId, target)
	mustPublish(t, d, v.VolumeId, target)
	write(t, filepath.Join(target, "file"), "kept")
	if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.VolumeId}); status.Code(
		err) != codes.FailedPrecondition {
		t.Errorf("deleting a volume in use: %v", err)
	}
	second := filepath.Join(t.TempDir(), "second")
	alone := &spec.VolumeCapability{AccessType: mounted[0].AccessType,
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER}}
	if _, err := d.NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{VolumeId: v.VolumeId, TargetPath: second,
		VolumeCapability: alone}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a volume for one pod in a second: %v", err)
	}
	stats, err := d.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: v.VolumeId, VolumePath: target})
	if err != nil || stats.Usage[0].Total != 10<<20 || stats.Usage[0].Used <= 0 {
		t.Errorf("statistics %v, %v", stats, err)
	}
	d = open(t, d.cfg.Dir) // as after a crash
	for range 2 {
		if _, err := d.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: v.VolumeId,
			TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
	mustPublish(t, d, v.VolumeId, target)
	if text, _ := os.ReadFile(filepath.Join(target, "file")); string(text) != "kept" {
		t.Errorf("the file holds %q", text)
	}
	if _, err := d.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: v.VolumeId,
		TargetPath: target}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.VolumeId}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.empty(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		if left, _ := os.ReadDir(d.path(folder)); len(left) > 0 {
			t.Errorf("%s holds %v", folder, left)
		}
	}
}

// disk is an empty filesystem of a size of its own.
func disk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestImage: the kernel refuses what is beyond the size of an image, also
// after it grew under its pod.
func TestImage(t *testing.T) {
	needRoot(t)
	if lacks := missingTools(); len(lacks) > 0 {
		t.Fatalf("%v are missing: install e2fsprogs", lacks)
	}
	d := open(t, t.TempDir())
	v := d.mustCreate(t, "pvc-2", 16<<20, Image)
	if v.VolumeContext[EnforcedContext] != "true" {
		t.Errorf("context %v", v.VolumeContext)
	}
	target := filepath.Join(t.TempDir(), "mount")
	mustPublish(t, d, v.VolumeId, target)
	t.Cleanup(func() { _ = unix.Unmount(d.path("volumes", v.VolumeId, mountDir), unix.MNT_DETACH) })
	if names, _ := os.ReadDir(target); len(names) > 0 {
		t.Errorf("a new volume holds %v", names)
	}
	fill := func(name string, bytes int) error {
		return os.WriteFile(filepath.Join(target, name), make([]byte, bytes), 0o600)
	}
	if err := fill("large", 20<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("20 MiB into 16: %v", err)
	}
	unpublish := func() {
		t.Helper()
		if _, err := d.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: v.VolumeId,
			TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
	grow := func() error {
		_, err := d.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{VolumeId: v.VolumeId,
			CapacityRange: &spec.CapacityRange{RequiredBytes: 64 << 20}})
		return err
	}
	switch err := grow(); {
	case mayResize() && err != nil:
		t.Fatal(err)
	case !mayResize():
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("growing in use without the capability for it: %v", err)
		}
		unpublish()
		if err := grow(); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, d, v.VolumeId, target)
	}
	if err := fill("large", 20<<20); err != nil {
		t.Errorf("20 MiB into 64: %v", err)
	}
	stats, err := d.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: v.VolumeId, VolumePath: target})
	if err != nil || stats.Usage[0].Total < 50<<20 || stats.Usage[0].Used < 20<<20 {
		t.Errorf("statistics %v, %v", stats, err)
	}
	unpublish()
	if dev, err := attached(d.path("volumes", v.VolumeId, imageFile)); err != nil || dev != "" {
		t.Errorf("%q is still on the image: %v", dev, err)
	}
	// At rest it grows too, and a copy may be larger than what it is of.
	if _, err := d.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{VolumeId: v.VolumeId,
		CapacityRange: &spec.CapacityRange{RequiredBytes: 80 << 20}}); err != nil {
		t.Fatal(err)
	}
	got, err := d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{Name: "copy", VolumeCapabilities: mounted,
		Parameters:    map[string]string{TypeParameter: string(Image)},
		CapacityRange: &spec.CapacityRange{RequiredBytes: 96 << 20},
		VolumeContentSource: &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
			Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: v.VolumeId}}}})
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	mustPublish(t, d, got.Volume.VolumeId, other)
	t.Cleanup(func() { _ = unix.Unmount(d.path("volumes", got.Volume.VolumeId, mountDir), unix.MNT_DETACH) })
	if info, err := os.Stat(filepath.Join(other, "large")); err != nil || info.Size() != 20<<20 {
		t.Errorf("the copy holds %v, %v", info, err)
	}
	if _, err := d.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: got.Volume.VolumeId,
		TargetPath: other}); err != nil {
		t.Fatal(err)
	}
}

// TestPromises: where quotas hold, no byte is promised twice, and each volume
// has a limit of its own.
func TestPromises(t *testing.T) {
	needRoot(t)
	d := open(t, disk(t, "4g"))
	quota := &fakeQuota{limits: map[uint32]int64{}, usage: map[uint32]int64{}}
	d.quota, d.enforces = quota, true
	before, err := d.space()
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 30
	a, b := d.mustCreate(t, "a", size, Directory), d.mustCreate(t, "b", size, Directory)
	if a.VolumeContext[EnforcedContext] != "true" || len(quota.limits) != 2 {
		t.Errorf("context %v, limits %v", a.VolumeContext, quota.limits)
	}
	after, err := d.space()
	if slack := int64(1 << 20); err != nil || before-after < 2*size-slack || before-after > 2*size+slack {
		t.Errorf("two volumes of 1 GiB took %d bytes of what may be promised: %v", before-after, err)
	}
	_, err = d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{Name: "c", VolumeCapabilities: mounted,
		CapacityRange: &spec.CapacityRange{RequiredBytes: after + 1}})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than there is: %v", err)
	}
	if _, err := d.ControllerExpandVolume(t.Context(), &spec.ControllerExpandVolumeRequest{VolumeId: b.VolumeId,
		CapacityRange: &spec.CapacityRange{RequiredBytes: 2 * size}}); err != nil {
		t.Fatal(err)
	}
	r, err := readRecord(d.path("volumes", b.VolumeId))
	if err != nil || r.Bytes != 2*size || quota.limits[r.Project] != 2*size {
		t.Errorf("grown: %+v, limits %v: %v", r, quota.limits, err)
	}
}

// TestCrash: what was being made is removed at the next start, and what was
// being deleted too; what was whole stays.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	kept := d.mustCreate(t, "kept", 1<<20, Directory)
	for _, left := range []string{"making/half", "trash/gone-0"} {
		if err := os.MkdirAll(filepath.Join(dir, left, dataDir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d = open(t, dir)
	if err := d.empty(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"making", "trash"} {
		if left, _ := os.ReadDir(d.path(folder)); len(left) > 0 {
			t.Errorf("%s holds %v", folder, left)
		}
	}
	all, err := d.ListVolumes(t.Context(), &spec.ListVolumesRequest{})
	if err != nil || len(all.Entries) != 1 || all.Entries[0].Volume.VolumeId != kept.VolumeId {
		t.Errorf("volumes %v, %v", all, err)
	}
}
