package localvolume

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetPluginInfo names the driver.
func (d *Driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: Name, VendorVersion: cmpOr(d.cfg.Version, "unknown")}, nil
}

// GetPluginCapabilities says that volumes are made on demand, stay where they
// were made, and grow in use.
func (d *Driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	service := func(t spec.PluginCapability_Service_Type) *spec.PluginCapability {
		return &spec.PluginCapability{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}}}
	}
	return &spec.GetPluginCapabilitiesResponse{Capabilities: []*spec.PluginCapability{
		service(spec.PluginCapability_Service_CONTROLLER_SERVICE), service(spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{
			Type: spec.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe says that the driver is ready: it is, or it is not there.
func (d *Driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// ControllerGetCapabilities lists what the controller service can do.
func (d *Driver) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (
	*spec.ControllerGetCapabilitiesResponse, error) {
	out := &spec.ControllerGetCapabilitiesResponse{}
	for _, t := range []spec.ControllerServiceCapability_RPC_Type{
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, spec.ControllerServiceCapability_RPC_LIST_VOLUMES,
		spec.ControllerServiceCapability_RPC_GET_CAPACITY, spec.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		spec.ControllerServiceCapability_RPC_CLONE_VOLUME, spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &spec.ControllerServiceCapability{
			Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// failed gives an error of the filesystem the code that callers act by.
func failed(doing string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		code = codes.ResourceExhausted
	}
	return status.Errorf(code, "%s: %v", doing, err)
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// lock holds one volume or snapshot.
func (d *Driver) lock(id string) (unlock func()) {
	d.locks.LockKey(id)
	return func() { _ = d.locks.UnlockKey(id) }
}

// class is what the parameters of a StorageClass ask for.
func class(parameters map[string]string) (Kind, error) {
	kind := Directory
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		switch {
		case key == TypeParameter && (value == string(Directory) || value == string(Image)):
			kind = Kind(value)
		case key == TypeParameter:
			return "", status.Errorf(codes.InvalidArgument, "parameter %s is %q: allowed are %q and %q", key, value, Directory, Image)
		default:
			return "", status.Errorf(codes.InvalidArgument, "parameter %q is unknown: allowed is %q", key, TypeParameter)
		}
	}
	return kind, nil
}

// wanted checks what a volume is to be able to do, and says whether it is to
// be a device.
func wanted(capabilities []*spec.VolumeCapability) (block bool, err error) {
	if len(capabilities) == 0 {
		return false, status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	for i, c := range capabilities {
		switch c.GetAccessMode().GetMode() {
		case spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return false, status.Errorf(codes.InvalidArgument, "access mode %s needs several nodes, and a local volume is on one: "+
				"use ReadWriteOnce or ReadWriteOncePod", c.GetAccessMode().GetMode())
		}
		m := c.GetMount()
		switch t := m.GetFsType(); {
		case m == nil && c.GetBlock() == nil:
			return false, status.Error(codes.InvalidArgument, "a volume capability is neither a filesystem nor a block device")
		case t != "" && t != "ext4":
			return false, status.Errorf(codes.InvalidArgument, "filesystem type %q: allowed is \"ext4\" or none", t)
		}
		if _, err := parseOptions(m.GetMountFlags()); err != nil {
			return false, status.Error(codes.InvalidArgument, err.Error())
		}
		if i > 0 && block != (c.GetBlock() != nil) {
			return false, status.Error(codes.InvalidArgument, "a volume cannot be a filesystem and a block device at once")
		}
		block = c.GetBlock() != nil
	}
	return block, nil
}

// find reads a volume or snapshot that a request names.
func (d *Driver) find(folder, id string) (*record, error) {
	if id == "" {
		return nil, status.Errorf(codes.InvalidArgument, "the id is missing")
	}
	r, err := (*record)(nil), fs.ErrNotExist
	if validID(id) {
		r, err = readRecord(d.path(folder, id))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "node %s has nothing called %q among its %s", d.cfg.Node, id, folder)
	}
	if err != nil {
		return nil, failed("reading "+id, err)
	}
	return r, nil
}

// describe is a volume as CSI has it.
func (d *Driver) describe(r *record, source *spec.VolumeContentSource) *spec.Volume {
	return &spec.Volume{
		VolumeId: r.ID, CapacityBytes: r.Bytes, VolumeContext: map[string]string{EnforcedContext: strconv.FormatBool(r.Enforced),
			TypeParameter: string(r.Kind)},
		ContentSource: source, AccessibleTopology: []*spec.Topology{{Segments: map[string]string{TopologyKey: d.cfg.Node}}},
	}
}

// DeleteVolume removes a volume and what is in it; one that is not there is
// removed already. A volume in use stays.
func (d *Driver) DeleteVolume(_ context.Context, req *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	r, err := d.find("volumes", req.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &spec.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.lock(r.ID)()
	if r, err = d.find("volumes", r.ID); err != nil {
		return &spec.DeleteVolumeResponse{}, ignore(err, codes.NotFound)
	}
	published, err := stillPublished(r)
	if err != nil {
		return nil, failed("deleting volume "+r.ID, err)
	}
	if len(published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use at %s", r.ID, published[0].Target)
	}
	dir := d.path("volumes", r.ID)
	if err := d.rest(dir, r); err != nil {
		return nil, failed("deleting volume "+r.ID, err)
	}
	d.sizes.forget(filepath.Join(dir, dataDir))
	if err := d.discard(dir); err != nil {
		return nil, failed("deleting volume "+r.ID, err)
	}
	d.cfg.Log.Info("deleted a local volume", "volume", r.ID, "name", r.Name)
	return &spec.DeleteVolumeResponse{}, nil
}

func ignore(err error, code codes.Code) error {
	if status.Code(err) == code {
		return nil
	}
	return err
}

// ValidateVolumeCapabilities tells whether a volume can do what is asked.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *spec.ValidateVolumeCapabilitiesRequest) (
	*spec.ValidateVolumeCapabilitiesResponse, error) {
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	r, err := d.find("volumes", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	block, err := wanted(req.GetVolumeCapabilities())
	if err != nil {
		return &spec.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	if block != r.Block {
		return &spec.ValidateVolumeCapabilitiesResponse{Message: "the volume is of the other volume mode"}, nil
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters()}}, nil
}

// GetCapacity tells what may still be promised on this node.
func (d *Driver) GetCapacity(_ context.Context, req *spec.GetCapacityRequest) (*spec.GetCapacityResponse, error) {
	kind, err := class(req.GetParameters())
	if err != nil {
		return nil, err
	}
	at := req.GetAccessibleTopology().GetSegments()[TopologyKey]
	if at != "" && at != d.cfg.Node || kind == Image && len(missingTools()) > 0 {
		return &spec.GetCapacityResponse{}, nil
	}
	d.room.Lock()
	free, err := d.space()
	d.room.Unlock()
	if err != nil {
		return nil, failed("measuring the room for volumes", err)
	}
	return &spec.GetCapacityResponse{AvailableCapacity: free}, nil
}

// ControllerExpandVolume grows a volume, in use or not; nothing is left to do
// on the node.
func (d *Driver) ControllerExpandVolume(ctx context.Context, req *spec.ControllerExpandVolumeRequest) (*spec.ControllerExpandVolumeResponse,
	error) {
	r, err := d.find("volumes", req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	least, limit := req.GetCapacityRange().GetRequiredBytes(), req.GetCapacityRange().GetLimitBytes()
	if req.GetCapacityRange() == nil || least <= 0 && limit <= 0 {
		return nil, status.Error(codes.InvalidArgument, "the new size is missing")
	}
	defer d.lock(r.ID)()
	if r, err = d.find("volumes", r.ID); err != nil {
		return nil, err
	}
	bytes := least
	if r.Kind == Image {
		bytes = roundImage(bytes)
	}
	if limit > 0 && bytes > limit {
		return nil, status.Errorf(codes.OutOfRange, "no size is at least %d and at most %d bytes", least, limit)
	}
	if bytes > r.Bytes {
		if err := d.grow(ctx, r, bytes); err != nil {
			return nil, failed("growing volume "+r.ID, err)
		}
	}
	return &spec.ControllerExpandVolumeResponse{CapacityBytes: r.Bytes}, nil
}

// grow enlarges a volume whose lock is held. The record is written last: a
// crash before leaves a volume that has more than it says, and the next call
// finds it so.
func (d *Driver) grow(ctx context.Context, r *record, bytes int64) error {
	d.room.Lock()
	defer d.room.Unlock()
	free, err := d.space()
	if err != nil {
		return err
	}
	if more := bytes - r.Bytes; free < more {
		return status.Errorf(codes.ResourceExhausted, "node %s has room for %d more bytes of local volumes, %d are asked for", d.cfg.Node,
			free, more)
	}
	dir := d.path("volumes", r.ID)
	switch {
	case r.Kind == Image:
		image := filepath.Join(dir, imageFile)
		used, err := isMount(filepath.Join(dir, mountDir))
		if err != nil {
			return err
		}
		if used && !r.Block && !mayResize() {
			return status.Errorf(codes.FailedPrecondition,
				"node %s may not let a filesystem in use grow (no CAP_SYS_RESOURCE): the volume grows when its pods have ended", d.cfg.Node)
		}
		if err := growImage(ctx, image, used, bytes); err != nil {
			return err
		}
		if !r.Block && !used {
			if err := fit(ctx, image); err != nil {
				return err
			}
		}
	case r.Project != 0:
		if err := d.quota.limit(filepath.Join(dir, dataDir), r.Project, bytes); err != nil {
			return err
		}
	}
	r.Bytes = bytes
	return writeRecord(dir, r)
}

// ListVolumes lists the volumes of this node by id.
func (d *Driver) ListVolumes(_ context.Context, req *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	all, err := d.records("volumes")
	if err != nil {
		return nil, failed("listing volumes", err)
	}
	page, next, err := pageOf(all, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &spec.ListVolumesResponse{NextToken: next}
	for _, r := range page {
		v := d.describe(r, nil)
		v.VolumeContext[UsedContext] = strconv.FormatBool(r.Used)
		out.Entries = append(out.Entries, &spec.ListVolumesResponse_Entry{Volume: v})
	}
	return out, nil
}

// pageOf cuts a page out of a list that is sorted by id; a token
// names the last id of the page before.
func pageOf(all []*record, token string, most int32) (page []*record, next string, err error) {
	after, ours := strings.CutPrefix(token, "after/")
	if token != "" && !ours {
		return nil, "", status.Errorf(codes.Aborted, "token %q is none of a list of ours: begin again without", token)
	}
	for _, r := range all {
		if r.ID <= after {
			continue
		}
		if most > 0 && len(page) == int(most) {
			return page, "after/" + page[len(page)-1].ID, nil
		}
		page = append(page, r)
	}
	return page, "", nil
}
