package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot copies a volume as it is now; the copy shares blocks with it
// where the filesystem can. A directory is copied file by file: what a pod
// writes meanwhile may be in the copy or not.
func (d *Driver) CreateSnapshot(ctx context.Context, req *spec.CreateSnapshotRequest) (*spec.CreateSnapshotResponse, error) {
	if req.GetName() == "" || req.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name of the snapshot or the id of the volume is missing")
	}
	if len(req.GetParameters()) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "parameters %v: a snapshot has none", req.GetParameters())
	}
	id := idOf(req.GetName())
	defer d.lock(id)()
	have, err := readRecord(d.path("snapshots", id))
	switch {
	case err == nil && (have.Name != req.GetName() || have.Source != "volumes/"+req.GetSourceVolumeId()):
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists and is of %s", have.Name, have.Source)
	case err == nil:
		return &spec.CreateSnapshotResponse{Snapshot: describeSnapshot(have)}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, failed("reading snapshot "+id, err)
	}
	from, err := d.find("volumes", req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	r := &record{ID: id, Name: req.GetName(), Kind: from.Kind, Block: from.Block, Bytes: from.Bytes, Source: "volumes/" + from.ID,
		Created: now()}
	if err := d.make(ctx, "snapshots", r, from); err != nil {
		return nil, failed(fmt.Sprintf("making snapshot %q", r.Name), err)
	}
	return &spec.CreateSnapshotResponse{Snapshot: describeSnapshot(r)}, nil
}

func describeSnapshot(r *record) *spec.Snapshot {
	return &spec.Snapshot{SnapshotId: r.ID, SourceVolumeId: r.Source[len("volumes/"):], SizeBytes: r.Bytes,
		CreationTime: timestamppb.New(r.Created), ReadyToUse: true}
}

// DeleteSnapshot removes a snapshot; one that is not there is removed already.
func (d *Driver) DeleteSnapshot(_ context.Context, req *spec.DeleteSnapshotRequest) (*spec.DeleteSnapshotResponse, error) {
	r, err := d.find("snapshots", req.GetSnapshotId())
	if err != nil {
		return &spec.DeleteSnapshotResponse{}, ignore(err, codes.NotFound)
	}
	defer d.lock(r.ID)()
	if err := d.discard(d.path("snapshots", r.ID)); err != nil {
		return nil, failed("deleting snapshot "+r.ID, err)
	}
	return &spec.DeleteSnapshotResponse{}, nil
}

// ListSnapshots lists the snapshots of this node by id.
func (d *Driver) ListSnapshots(_ context.Context, req *spec.ListSnapshotsRequest) (*spec.ListSnapshotsResponse, error) {
	all, err := d.records("snapshots")
	if err != nil {
		return nil, failed("listing snapshots", err)
	}
	some := all[:0]
	for _, r := range all {
		if (req.GetSnapshotId() == "" || r.ID == req.GetSnapshotId()) && (req.GetSourceVolumeId() == "" || r.Source == "volumes/"+
			req.GetSourceVolumeId()) {
			some = append(some, r)
		}
	}
	page, next, err := pageOf(some, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &spec.ListSnapshotsResponse{NextToken: next}
	for _, r := range page {
		out.Entries = append(out.Entries, &spec.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(r)})
	}
	return out, nil
}
