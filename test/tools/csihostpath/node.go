package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const ephemeralKey = "csi.storage.k8s.io/ephemeral"

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	out := &csi.NodeGetInfoResponse{NodeId: d.nodeID, MaxVolumesPerNode: d.maxVolumes}
	if d.segments != nil {
		out.AccessibleTopology = &csi.Topology{Segments: d.segments}
	}
	return out, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	caps := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.mountGroup {
		caps = append(caps, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range caps {
		out.Capabilities = append(out.Capabilities,
			&csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, missing("volume_id")
	case r.GetStagingTargetPath() == "":
		return nil, missing("staging_target_path")
	case r.GetVolumeCapability() == nil:
		return nil, missing("volume_capability")
	}
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if v.Staged != "" && v.Staged != r.StagingTargetPath {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is staged at %s", v.ID, v.Staged)
	}
	v.Staged = r.StagingTargetPath
	if err := d.store.save(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if v.Block {
		_, err = d.device(v)
	} else {
		err = bind(d.store.data(v), r.StagingTargetPath, false)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "staging: %v", err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if r.GetStagingTargetPath() == "" {
		return nil, missing("staging_target_path")
	}
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is still published at %d places", v.ID, len(v.Published))
	}
	if v.Block {
		err = d.detach(v)
	} else {
		err = unbind(r.StagingTargetPath)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "unstaging: %v", err)
	}
	v.Staged = ""
	if err := d.store.save(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "":
		return nil, missing("volume_id")
	case r.GetTargetPath() == "":
		return nil, missing("target_path")
	case r.GetVolumeCapability() == nil:
		return nil, missing("volume_capability")
	}
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.publishable(r)
	if err != nil {
		return nil, err
	}
	if have, ok := v.Published[r.TargetPath]; ok && have != r.Readonly {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is published there with readonly %v", v.ID, have)
	}
	single := r.VolumeCapability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if _, again := v.Published[r.TargetPath]; single && !again && len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q has a writer already", v.ID)
	}
	v.Published[r.TargetPath] = r.Readonly
	if err := d.store.save(v); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := d.show(v, r); err != nil {
		return nil, status.Errorf(codes.Internal, "publishing: %v", err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishable finds the volume to publish, and makes an ephemeral one.
func (d *driver) publishable(r *csi.NodePublishVolumeRequest) (*volume, error) {
	if r.VolumeContext[ephemeralKey] == "true" && d.store.all[r.VolumeId] == nil {
		v := &volume{ID: r.VolumeId, Name: r.VolumeId, Size: defaultSize, Ephemeral: true, Published: map[string]bool{}}
		if text, ok := r.VolumeContext["size"]; ok {
			var err error
			if v.Size, err = parseSize(text); err != nil {
				return nil, err
			}
		}
		if err := d.store.create(v); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		// What the pod told is there to be read.
		if token := r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]; token != "" {
			if err := os.WriteFile(filepath.Join(d.store.data(v), "tokens"), []byte(token), 0o600); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
		}
		text := r.VolumeContext["csi.storage.k8s.io/pod.namespace"] + "/" + r.VolumeContext["csi.storage.k8s.io/pod.name"]
		if err := os.WriteFile(filepath.Join(d.store.data(v), "pod"), []byte(text), 0o644); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return v, nil
	}
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if !v.Ephemeral && (r.GetStagingTargetPath() == "" || v.Staged != r.StagingTargetPath) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is not staged at %q", v.ID, r.GetStagingTargetPath())
	}
	return v, nil
}

// show makes the volume appear at the target.
func (d *driver) show(v *volume, r *csi.NodePublishVolumeRequest) error {
	if v.Block {
		device, err := d.device(v)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(r.TargetPath, os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		f.Close()
		return bind(device, r.TargetPath, r.Readonly)
	}
	if err := os.Mkdir(r.TargetPath, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if g := r.VolumeCapability.GetMount().GetVolumeMountGroup(); g != "" {
		gid, err := strconv.Atoi(g)
		if err != nil {
			return err
		}
		if err := errors.Join(os.Chown(d.store.data(v), -1, gid), os.Chmod(d.store.data(v), 0o770|fs.ModeSetgid)); err != nil {
			return err
		}
	}
	return bind(d.store.data(v), r.TargetPath, r.Readonly)
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if r.GetTargetPath() == "" {
		return nil, missing("target_path")
	}
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.find(r.VolumeId)
	if err != nil {
		if status.Code(err) == codes.NotFound && strings.HasPrefix(r.VolumeId, "csi-") {
			return &csi.NodeUnpublishVolumeResponse{}, nil // an ephemeral one, gone already
		}
		return nil, err
	}
	if err := unbind(r.TargetPath); err != nil {
		return nil, status.Errorf(codes.Internal, "unpublishing: %v", err)
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "unpublishing: %v", err)
	}
	delete(v.Published, r.TargetPath)
	if v.Ephemeral {
		err = d.store.remove(v)
	} else {
		err = d.store.save(v)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// findAt is the volume that is staged or published at a path.
func (d *driver) findAt(id, path string) (*volume, error) {
	if id == "" {
		return nil, missing("volume_id")
	}
	if path == "" {
		return nil, missing("volume_path")
	}
	v, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if _, ok := v.Published[path]; !ok && v.Staged != path {
		return nil, status.Errorf(codes.NotFound, "volume %q is not at %s", v.ID, path)
	}
	return v, nil
}

func (d *driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.findAt(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if v.Block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Size}}}, nil
	}
	used, files, err := d.store.used(v)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: v.Size, Used: used, Available: max(v.Size-used, 0)},
		{Unit: csi.VolumeUsage_INODES, Total: 1 << 20, Used: files, Available: 1<<20 - files},
	}}, nil
}

func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d.store.Lock()
	defer d.store.Unlock()
	v, err := d.findAt(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if v.Block {
		device, err := d.device(v)
		if err == nil {
			err = losetup("--set-capacity", device)
		}
		if err != nil {
			return nil, status.Errorf(codes.Internal, "growing the device: %v", err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
}

// device is the loop device of a block volume, attached if it is not.
func (d *driver) device(v *volume) (string, error) {
	out, err := exec.Command("losetup", "--noheadings", "--output", "NAME", "--associated", d.store.data(v)).Output()
	if err != nil {
		return "", err
	}
	if name, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); name != "" {
		return name, nil
	}
	out, err = exec.Command("losetup", "--show", "--find", d.store.data(v)).Output()
	return strings.TrimSpace(string(out)), err
}

func (d *driver) detach(v *volume) error {
	out, err := exec.Command("losetup", "--noheadings", "--output", "NAME", "--associated", d.store.data(v)).Output()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(out)) {
		err = errors.Join(err, losetup("--detach", name))
	}
	return err
}

func losetup(args ...string) error {
	out, err := exec.Command("losetup", args...).CombinedOutput()
	if err != nil {
		return errors.Join(err, errors.New(strings.TrimSpace(string(out))))
	}
	return nil
}

// bind mounts from at to, once.
func bind(from, to string, readOnly bool) error {
	if ok, err := mounted(to); err != nil || ok {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func unbind(path string) error {
	if ok, err := mounted(path); err != nil || !ok {
		return err
	}
	return unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
}

func mounted(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}
