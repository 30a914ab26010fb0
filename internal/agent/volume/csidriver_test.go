package volume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/internal/agent/plugins"
)

// testDriver is a CSI driver that stages by bind mounting a directory of its
// own and publishes by bind mounting the staged one. It refuses what the
// protocol forbids: publishing what is not staged, unstaging what is published.
type testDriver struct {
	spec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	store    string
	endpoint string
	caps     []spec.NodeServiceCapability_RPC_Type

	mu        sync.Mutex
	staged    map[string]string
	published map[string]string // target -> volume
	last      *spec.NodePublishVolumeRequest
	calls     []string
	notified  chan *registration.RegistrationStatus
	// noRoom has it refuse to grow anything.
	noRoom bool
	// hang, if set, may keep a publish from being answered.
	hang func(*spec.NodePublishVolumeRequest)
}

// startDriver serves a driver on two sockets: its own and, in register, that
// of the registration protocol ("" for none).
func startDriver(t *testing.T, register string) *testDriver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &testDriver{
		store: filepath.Join(dir, "store"), endpoint: filepath.Join(dir, "csi.sock"),
		staged: map[string]string{}, published: map[string]string{}, notified: make(chan *registration.RegistrationStatus, 10),
		caps: []spec.NodeServiceCapability_RPC_Type{spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
			spec.NodeServiceCapability_RPC_EXPAND_VOLUME},
	}
	serve := func(path string, reg func(*grpc.Server)) {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		reg(s)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
	}
	serve(d.endpoint, func(s *grpc.Server) { spec.RegisterNodeServer(s, d) })
	if register != "" {
		serve(register, func(s *grpc.Server) { registration.RegisterRegistrationServer(s, d) })
	}
	return d
}

func (d *testDriver) note(format string, args ...any) {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}

func (d *testDriver) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := strings.Join(d.calls, ", ")
	d.calls = nil
	return s
}

func (d *testDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: plugins.CSIPlugin, Name: "test.csi", Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}},
		nil
}

func (d *testDriver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	d.notified <- s
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *testDriver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: "id-1", MaxVolumesPerNode: 5,
		AccessibleTopology: &spec.Topology{Segments: map[string]string{"test/zone": "z1"}}}, nil
}

func (d *testDriver) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.caps {
		out.Capabilities = append(out.Capabilities,
			&spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func bind(from, to string) error {
	if ok, err := isMount(to); err != nil || ok {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "")
}

func unbind(target string) error {
	if ok, err := isMount(target); err != nil || !ok {
		return err
	}
	return unix.Unmount(target, 0)
}

func (d *testDriver) NodeStageVolume(_ context.Context, r *spec.NodeStageVolumeRequest) (*spec.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("stage %s", r.VolumeId)
	if _, err := os.Stat(r.StagingTargetPath); err != nil {
		return nil, errors.New("the staging directory must exist")
	}
	d.staged[r.VolumeId] = r.StagingTargetPath
	if r.VolumeCapability.GetBlock() != nil {
		return &spec.NodeStageVolumeResponse{}, nil
	}
	dir := filepath.Join(d.store, r.VolumeId)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &spec.NodeStageVolumeResponse{}, bind(dir, r.StagingTargetPath)
}

func (d *testDriver) NodeUnstageVolume(_ context.Context, r *spec.NodeUnstageVolumeRequest) (*spec.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("unstage %s", r.VolumeId)
	for target, id := range d.published {
		if id == r.VolumeId {
			return nil, fmt.Errorf("still published at %s", target)
		}
	}
	delete(d.staged, r.VolumeId)
	return &spec.NodeUnstageVolumeResponse{}, unbind(r.StagingTargetPath)
}

func (d *testDriver) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	if d.hang != nil {
		d.hang(r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("publish %s", r.VolumeId)
	d.last = r
	d.published[r.TargetPath] = r.VolumeId
	if r.VolumeCapability.GetBlock() != nil {
		f, err := os.OpenFile(r.TargetPath, os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		f.Close()
		return &spec.NodePublishVolumeResponse{}, bind("/dev/null", r.TargetPath)
	}
	source := r.StagingTargetPath
	if source == "" {
		source = filepath.Join(d.store, r.VolumeId)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return nil, err
		}
	} else if d.staged[r.VolumeId] != source {
		return nil, errors.New("not staged")
	}
	if err := os.MkdirAll(r.TargetPath, 0o755); err != nil {
		return nil, err
	}
	return &spec.NodePublishVolumeResponse{}, bind(source, r.TargetPath)
}

func (d *testDriver) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("unpublish %s", r.VolumeId)
	delete(d.published, r.TargetPath)
	if err := unbind(r.TargetPath); err != nil {
		return nil, err
	}
	return &spec.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

func (d *testDriver) NodeExpandVolume(_ context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("expand %s to %d", r.VolumeId, r.CapacityRange.RequiredBytes)
	if d.noRoom {
		return nil, status.Error(codes.OutOfRange, "no room")
	}
	return &spec.NodeExpandVolumeResponse{}, nil
}

func (d *testDriver) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.published[r.VolumePath] != r.VolumeId {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.VolumeId, r.VolumePath)
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{Unit: spec.VolumeUsage_BYTES, Total: 100, Available: 60, Used: 40}, {Unit: spec.VolumeUsage_INODES, Total: 10, Available: 9,
			Used: 1},
	}}, nil
}
