package localvolume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo says where volumes made here can be used: here.
func (d *Driver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: d.cfg.Node,
		AccessibleTopology: &spec.Topology{Segments: map[string]string{TopologyKey: d.cfg.Node}}}, nil
}

// NodeGetCapabilities lists what the node service can do.
func (d *Driver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, t := range []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities,
			&spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// stillPublished are the places of a volume where something is mounted.
func stillPublished(r *record) ([]publication, error) {
	var out []publication
	for _, p := range r.Published {
		ok, err := isMount(p.Target)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// NodePublishVolume shows a volume to a pod.
func (d *Driver) NodePublishVolume(_ context.Context, req *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	if req.GetTargetPath() == "" || req.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "the target path or the volume capability is missing")
	}
	block, err := wanted([]*spec.VolumeCapability{req.GetVolumeCapability()})
	if err != nil {
		return nil, err
	}
	r, err := d.find("volumes", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if block != r.Block {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s is of the other volume mode", r.ID)
	}
	defer d.lock(r.ID)()
	if r, err = d.find("volumes", r.ID); err != nil {
		return nil, err
	}
	if err := d.publish(r, req); err != nil {
		return nil, failed("publishing volume "+r.ID, err)
	}
	return &spec.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(r *record, req *spec.NodePublishVolumeRequest) error {
	options, err := parseOptions(req.GetVolumeCapability().GetMount().GetMountFlags())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	mode := req.GetVolumeCapability().GetAccessMode().GetMode()
	if req.GetReadonly() || mode == spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		options |= unix.MS_RDONLY
	}
	here := publication{Target: req.GetTargetPath(), ReadOnly: options&unix.MS_RDONLY != 0}
	present, err := stillPublished(r)
	if err != nil {
		return err
	}
	for _, p := range present {
		switch {
		case p == here:
			return nil
		case p.Target == here.Target:
			return status.Errorf(codes.AlreadyExists, "volume %s is at %s with other options", r.ID, p.Target)
		case mode == spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
			return status.Errorf(codes.FailedPrecondition, "volume %s is for one pod, and in use at %s", r.ID, p.Target)
		}
	}
	dir := d.path("volumes", r.ID)
	r.Published, r.Used = append(present, here), true
	if err := writeRecord(dir, r); err != nil {
		return err
	}
	source, err := d.wake(dir, r)
	if err != nil {
		return err
	}
	return bind(source, here.Target, options)
}

// wake makes what a pod is to see: a directory, or a device.
func (d *Driver) wake(dir string, r *record) (source string, err error) {
	switch {
	case r.Kind == Directory:
		return filepath.Join(dir, dataDir), nil
	case !r.Block:
		at := filepath.Join(dir, mountDir)
		return filepath.Join(at, dataDir), mountImage(filepath.Join(dir, imageFile), at)
	}
	dev, err := attach(filepath.Join(dir, imageFile), true)
	if err != nil {
		return "", err
	}
	return dev.Name(), dev.Close()
}

// rest undoes wake, once no pod sees the volume.
func (d *Driver) rest(dir string, r *record) error {
	switch {
	case r.Kind == Directory:
		return nil
	case !r.Block:
		return unbind(filepath.Join(dir, mountDir))
	}
	return detach(filepath.Join(dir, imageFile))
}

// NodeUnpublishVolume takes a volume away from a pod.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	if req.GetTargetPath() == "" || req.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the target path or the id of the volume is missing")
	}
	defer d.lock(req.GetVolumeId())()
	if err := unbind(req.GetTargetPath()); err != nil {
		return nil, failed("unpublishing volume "+req.GetVolumeId(), err)
	}
	r, err := d.find("volumes", req.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &spec.NodeUnpublishVolumeResponse{}, nil // nothing is left but the place, and that is gone
	}
	if err != nil {
		return nil, err
	}
	dir := d.path("volumes", r.ID)
	present, err := stillPublished(r)
	if err == nil && len(present) == 0 {
		err = d.rest(dir, r)
	}
	if err == nil && !slices.Equal(present, r.Published) {
		r.Published = present
		err = writeRecord(dir, r)
	}
	if err != nil {
		return nil, failed("unpublishing volume "+r.ID, err)
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats tells what a volume holds and can hold. A filesystem that
// knows the volume's limit tells itself; what is in a directory without a
// limit is added up, at most once a minute.
func (d *Driver) NodeGetVolumeStats(_ context.Context, req *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if req.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "the path of the volume is missing")
	}
	r, err := d.find("volumes", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	present, err := stillPublished(r)
	if err != nil {
		return nil, failed("measuring volume "+r.ID, err)
	}
	if !slices.ContainsFunc(present, func(p publication) bool { return p.Target == req.GetVolumePath() }) {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.ID, req.GetVolumePath())
	}
	if r.Block {
		return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{{Unit: spec.VolumeUsage_BYTES, Total: r.Bytes}}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(req.GetVolumePath(), &st); err != nil {
		return nil, failed("measuring volume "+r.ID, &os.PathError{Op: "statfs", Path: req.GetVolumePath(), Err: err})
	}
	bytes := &spec.VolumeUsage{Unit: spec.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Available: int64(st.Bavail) * st.Bsize,
		Used: int64(st.Blocks-st.Bfree) * st.Bsize}
	inodes := &spec.VolumeUsage{Unit: spec.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree),
		Used: int64(st.Files - st.Ffree)}
	if !r.Enforced {
		m, err := d.sizes.usage(d.path("volumes", r.ID, dataDir), now())
		if errors.Is(err, fs.ErrNotExist) {
			return nil, status.Errorf(codes.NotFound, "volume %s is gone", r.ID)
		}
		if err != nil {
			return nil, failed("measuring volume "+r.ID, err)
		}
		bytes.Total, bytes.Used, inodes.Used = r.Bytes, m.bytes, m.inodes
		bytes.Available = min(bytes.Available, max(r.Bytes-m.bytes, 0))
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{bytes, inodes}}, nil
}
