package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	defaultSize = 1 << 30
	// capacity is the most that one volume may have.
	capacity = 1 << 40
)

// driver serves the three CSI services over one store.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	options
	store    *store
	segments map[string]string
}

func missing(field string) error {
	return status.Errorf(codes.InvalidArgument, "%s is required", field)
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}
	services := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if d.segments != nil {
		services = append(services, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	for _, s := range services {
		out.Capabilities = append(out.Capabilities,
			&csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: s}}})
	}
	return out, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse,
	error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY, csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities,
			&csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
				Type: c}}})
	}
	return out, nil
}

// sizeOf picks a size within a range.
func sizeOf(r *csi.CapacityRange) (int64, error) {
	size := r.GetRequiredBytes()
	if size == 0 {
		size = defaultSize
		if limit := r.GetLimitBytes(); limit > 0 && limit < size {
			size = limit
		}
	}
	if size > capacity || r.GetLimitBytes() > 0 && size > r.GetLimitBytes() {
		return 0, status.Errorf(codes.OutOfRange, "no volume has %d bytes: at most %d are possible", size, int64(capacity))
	}
	return size, nil
}

// wantsBlock reads the mode of access; capabilities that contradict each other
// are an error.
func wantsBlock(caps []*csi.VolumeCapability) (bool, error) {
	if len(caps) == 0 {
		return false, missing("volume_capabilities")
	}
	block := caps[0].GetBlock() != nil
	for _, c := range caps {
		if (c.GetBlock() != nil) != block || c.GetBlock() == nil && c.GetMount() == nil {
			return false, status.Error(codes.InvalidArgument, "a volume is either block or mount")
		}
	}
	return block, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	}
	block, err := wantsBlock(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if r.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes are made empty: there are no snapshots or clones")
	}
	size, err := sizeOf(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	d.store.Lock()
	defer d.store.Unlock()
	if v := d.store.byName(r.Name); v != nil {
		if limit := r.GetCapacityRange().GetLimitBytes(); v.Size < size || limit > 0 && v.Size > limit || v.Block != block {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q exists and is different", r.Name)
		}
		return &csi.CreateVolumeResponse{Volume: d.describe(v)}, nil
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	v := &volume{ID: hex.EncodeToString(id[:]), Name: r.Name, Size: size, Block: block, Published: map[string]bool{}}
	if err := d.store.create(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: d.describe(v)}, nil
}

func (d *driver) describe(v *volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, VolumeContext: map[string]string{"made-by": d.name}}
	if d.segments != nil {
		out.AccessibleTopology = []*csi.Topology{{Segments: d.segments}}
	}
	return out
}

// find looks a volume up; the lock is held.
func (d *driver) find(id string) (*volume, error) {
	if id == "" {
		return nil, missing("volume_id")
	}
	if v := d.store.all[id]; v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no volume %q", id)
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if v.Staged != "" || len(v.Published) > 0 || v.Node != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is attached to node %q, staged at %q, published %d times", v.ID,
			v.Node, v.Staged, len(v.Published))
	}
	if err := d.store.remove(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse,
	error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, missing("volume_id")
	case r.GetNodeId() == "":
		return nil, missing("node_id")
	case r.GetVolumeCapability() == nil:
		return nil, missing("volume_capability")
	case r.NodeId != d.nodeID:
		return nil, status.Errorf(codes.NotFound, "there is no node %q", r.NodeId)
	}
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if v.Node != "" && v.ReadOnly != r.Readonly {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is attached with readonly %v", v.ID, v.ReadOnly)
	}
	if v.Node == "" && d.maxVolumes > 0 && d.attached() >= d.maxVolumes {
		return nil, status.Errorf(codes.ResourceExhausted, "node %q has %d volumes, which is its limit", r.NodeId, d.maxVolumes)
	}
	v.Node, v.ReadOnly = r.NodeId, r.Readonly
	if err := d.store.save(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-to": r.NodeId}}, nil
}

// attached counts the volumes of this node; the lock is held.
func (d *driver) attached() (n int64) {
	for _, v := range d.store.all {
		if v.Node != "" {
			n++
		}
	}
	return n
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (
	*csi.ControllerUnpublishVolumeResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if v.Staged != "" || len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is still staged or published on node %q", v.ID, v.Node)
	}
	v.Node, v.ReadOnly = "", false
	if err := d.store.save(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (
	*csi.ValidateVolumeCapabilitiesResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	block, err := wantsBlock(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if v.Block != block {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume has the other mode"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.VolumeCapabilities, Parameters: r.GetParameters(),
	}}, nil
}

// ListVolumes pages by the id to go on from.
func (d *driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	out := &csi.ListVolumesResponse{}
	if t := r.GetStartingToken(); t != "" && len(strings.Trim(t, "0123456789abcdef")) > 0 {
		return nil, status.Errorf(codes.Aborted, "starting_token %q did not come from here", t)
	}
	for _, v := range d.store.sorted() {
		if v.ID < r.GetStartingToken() {
			continue
		}
		if r.GetMaxEntries() > 0 && len(out.Entries) == int(r.MaxEntries) {
			out.NextToken = v.ID
			break
		}
		e := &csi.ListVolumesResponse_Entry{Volume: d.describe(v)}
		if v.Node != "" {
			e.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{v.Node}}
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

func (d *driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: capacity}, nil
}

func (d *driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse,
	error) {
	d.store.Lock()
	defer d.store.Unlock()
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if r.GetCapacityRange() == nil {
		return nil, missing("capacity_range")
	}
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	size, err := sizeOf(r.CapacityRange)
	if err != nil {
		return nil, err
	}
	if size > v.Size {
		v.Size = size
		if v.Block {
			err = d.store.resize(v)
		}
		if err == nil {
			err = d.store.save(v)
		}
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

func parseSize(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, status.Errorf(codes.InvalidArgument, "size %q: want a number of bytes", text)
	}
	return n, nil
}
