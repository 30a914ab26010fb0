package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// CreateVolume makes a volume, or finds the one it made for this name.
func (d *Driver) CreateVolume(ctx context.Context, req *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	want, err := d.request(req)
	if err != nil {
		return nil, err
	}
	defer d.lock(want.ID)()
	have, err := readRecord(d.path("volumes", want.ID))
	switch {
	case err == nil:
		limit := req.GetCapacityRange().GetLimitBytes()
		if have.Name != want.Name || have.Kind != want.Kind || have.Block != want.Block || have.Source != want.Source ||
			have.Bytes < req.GetCapacityRange().GetRequiredBytes() || limit > 0 && have.Bytes > limit {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q exists and is another: a %s of %d bytes", want.Name, have.Kind,
				have.Bytes)
		}
		return &spec.CreateVolumeResponse{Volume: d.describe(have, req.GetVolumeContentSource())}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, failed("reading volume "+want.ID, err)
	}
	source, err := d.source(req, want)
	if err != nil {
		return nil, err
	}
	if err := d.make(ctx, "volumes", want, source); err != nil {
		return nil, failed(fmt.Sprintf("making volume %q", want.Name), err)
	}
	return &spec.CreateVolumeResponse{Volume: d.describe(want, req.GetVolumeContentSource())}, nil
}

// request reads what volume is asked for.
func (d *Driver) request(req *spec.CreateVolumeRequest) (*record, error) {
	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name of the volume is missing")
	}
	kind, err := class(req.GetParameters())
	if err != nil {
		return nil, err
	}
	block, err := wanted(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if block {
		kind = Image // a directory is no device
	}
	if needed := req.GetAccessibilityRequirements().GetRequisite(); len(needed) > 0 && !slices.ContainsFunc(needed,
		func(t *spec.Topology) bool {
			return t.GetSegments()[TopologyKey] == d.cfg.Node
		}) {
		return nil, status.Errorf(codes.ResourceExhausted, "the volume may not be on node %s", d.cfg.Node)
	}
	least, limit := req.GetCapacityRange().GetRequiredBytes(), req.GetCapacityRange().GetLimitBytes()
	if least < 0 || limit < 0 || limit > 0 && limit < least {
		return nil, status.Errorf(codes.OutOfRange, "no size is at least %d and at most %d bytes", least, limit)
	}
	want := &record{ID: idOf(req.GetName()), Name: req.GetName(), Kind: kind, Block: block, Bytes: max(least, 1<<20), Created: now()}
	if kind == Image {
		if lacks := missingTools(); len(lacks) > 0 && !block {
			return nil, status.Errorf(codes.FailedPrecondition, "node %s lacks %s for volumes of type %s: install e2fsprogs", d.cfg.Node,
				strings.Join(lacks, " and "), Image)
		}
		want.Bytes = roundImage(want.Bytes)
	}
	want.Enforced = kind == Image || d.enforces
	if limit > 0 && want.Bytes > limit {
		return nil, status.Errorf(codes.OutOfRange, "a volume of this type has at least %d bytes, the limit is %d", want.Bytes, limit)
	}
	switch s := req.GetVolumeContentSource(); {
	case s.GetSnapshot() != nil:
		want.Source = "snapshots/" + s.GetSnapshot().GetSnapshotId()
	case s.GetVolume() != nil:
		want.Source = "volumes/" + s.GetVolume().GetVolumeId()
	}
	return want, nil
}

// source finds what a volume is to be a copy of; nil is nothing.
func (d *Driver) source(req *spec.CreateVolumeRequest, want *record) (*record, error) {
	if want.Source == "" {
		return nil, nil
	}
	folder, id, _ := strings.Cut(want.Source, "/")
	from, err := d.find(folder, id)
	switch {
	case err != nil:
		return nil, err
	case from.Kind != want.Kind || from.Block != want.Block:
		return nil, status.Errorf(codes.InvalidArgument, "%s is of type %s (block: %v): a copy of it cannot be of type %s (block: %v)",
			want.Source, from.Kind, from.Block, want.Kind, want.Block)
	case from.Bytes > want.Bytes && req.GetCapacityRange().GetRequiredBytes() > 0:
		return nil, status.Errorf(codes.OutOfRange, "%s has %d bytes: a copy of it cannot have %d", want.Source, from.Bytes, want.Bytes)
	}
	want.Bytes = max(want.Bytes, from.Bytes)
	return from, nil
}

// make builds a volume or snapshot aside and puts it in its place when it is
// whole. from is what it is a copy of, nil for nothing.
func (d *Driver) make(ctx context.Context, folder string, r, from *record) (err error) {
	dir := d.path("making", r.ID)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.discard(dir))
		}
	}()
	if err := d.allocate(dir, folder, r); err != nil {
		return err
	}
	switch {
	case from != nil:
		err = d.copyInto(ctx, dir, r, from)
	case r.Kind == Image && !r.Block:
		err = format(ctx, filepath.Join(dir, imageFile))
	}
	if err != nil {
		return err
	}
	if err := os.Rename(dir, d.path(folder, r.ID)); err != nil {
		return err
	}
	return syncDir(d.path(folder))
}

// allocate makes the folder of a volume with all the space it was promised.
// One at a time: two must not be promised the same space.
func (d *Driver) allocate(dir, folder string, r *record) error {
	d.room.Lock()
	defer d.room.Unlock()
	free, err := d.space()
	if err != nil {
		return err
	}
	if free < r.Bytes && folder == "volumes" {
		return status.Errorf(codes.ResourceExhausted, "node %s has room for %d bytes of local volumes, %d are asked for", d.cfg.Node, free,
			r.Bytes)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if r.Kind == Directory && r.Enforced && folder == "volumes" {
		if r.Project, err = d.project(r.ID); err != nil {
			return err
		}
	}
	if err := writeRecord(dir, r); err != nil {
		return err
	}
	if r.Kind == Image {
		if folder == "snapshots" {
			return nil // made by the copy, as small as that can be
		}
		return makeImage(filepath.Join(dir, imageFile), r.Bytes)
	}
	data := filepath.Join(dir, dataDir)
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	// Past the umask: images run as all kinds of users, and the folder above is
	// root's alone.
	if err := os.Chmod(data, 0o777); err != nil {
		return err
	}
	if r.Project == 0 {
		return nil
	}
	return d.quota.limit(data, r.Project, r.Bytes)
}

// copyInto fills a new volume or snapshot from another.
func (d *Driver) copyInto(ctx context.Context, dir string, r, from *record) error {
	source := d.path(strings.SplitN(r.Source, "/", 2)...)
	if r.Kind == Directory {
		return copyTree(ctx, filepath.Join(source, dataDir), filepath.Join(dir, dataDir))
	}
	thaw, err := d.freeze(source, from)
	if err != nil {
		return err
	}
	defer thaw()
	in, err := os.Open(filepath.Join(source, imageFile))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := copyData(ctx, in, out, from.Bytes); err != nil {
		return err
	}
	if strings.HasPrefix(r.Source, "volumes/") && r.Bytes == from.Bytes {
		return nil
	}
	if err := reserve(out, r.Bytes); err != nil || r.Block || r.Bytes == from.Bytes {
		return err
	}
	return fit(ctx, out.Name())
}

// freeze keeps the filesystem of a volume still while its image is copied. It
// may not take longer than an exchange of pointers: a pod waits meanwhile.
func (d *Driver) freeze(source string, from *record) (thaw func(), err error) {
	at := filepath.Join(source, mountDir)
	used := from.Block && len(from.Published) > 0
	if !from.Block {
		if used, err = isMount(at); err != nil {
			return nil, err
		}
	}
	if !used {
		return func() {}, nil
	}
	if !canShare(d.cfg.Dir) {
		return nil, status.Errorf(codes.FailedPrecondition,
			"volume %s is in use, and the filesystem of node %s cannot copy it at once (no reflinks): stop its pods first", from.ID,
			d.cfg.Node)
	}
	if from.Block {
		return func() {}, nil // what a device holds is the pod's business
	}
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), freezeFilesystem, 0); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("FIFREEZE", err)
	}
	return func() {
		if err := unix.IoctlSetInt(int(f.Fd()), thawFilesystem, 0); err != nil {
			d.cfg.Log.Error("thawing the filesystem of a volume", "volume", from.ID, "err", err)
		}
		_ = f.Close()
	}, nil
}

// linux/fs.h: FIFREEZE, FITHAW.
const freezeFilesystem, thawFilesystem = 0xc0045877, 0xc0045878
