package device

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// sample is a whole device plugin: it serves its socket, registers, and
// changes the health of its devices when told.
type sample struct {
	pluginapi.UnimplementedDevicePluginServer
	t       *testing.T
	dir     string
	socket  string
	server  *grpc.Server
	changes chan []*pluginapi.Device

	mu       sync.Mutex
	prefer   []string
	refuse   bool
	silent   bool // has no options
	mute     bool // lists nothing
	prepared []string
}

func startSample(t *testing.T, dir string, devices ...string) *sample {
	t.Helper()
	s := serveSample(t, dir, devices...)
	s.register()
	return s
}

func serveSample(t *testing.T, dir string, devices ...string) *sample {
	t.Helper()
	return serveNamed(t, dir, "sample.sock", devices...)
}

func serveNamed(t *testing.T, dir, name string, devices ...string) *sample {
	t.Helper()
	s := &sample{t: t, dir: dir, socket: filepath.Join(dir, name), server: grpc.NewServer(), changes: make(chan []*pluginapi.Device, 10)}
	os.Remove(s.socket)
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	pluginapi.RegisterDevicePluginServer(s.server, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.server.Serve(listener) })
	t.Cleanup(func() {
		s.server.Stop()
		wg.Wait()
	})
	s.show(devices...)
	return s
}

func (s *sample) register() {
	s.t.Helper()
	if err := s.tryRegister(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sample) tryRegister() error {
	s.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.dir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(s.t.Context(), &pluginapi.RegisterRequest{Version: pluginapi.Version,
		Endpoint: filepath.Base(s.socket), ResourceName: thing}, grpc.WaitForReady(true))
	return err
}

// fail makes allocations fail, or not any more.
func (s *sample) fail(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// show sends a list; a name with a "!" is unhealthy.
func (s *sample) show(names ...string) {
	var list []*pluginapi.Device
	for _, name := range names {
		device := &pluginapi.Device{ID: strings.TrimSuffix(name, "!"), Health: pluginapi.Healthy,
			Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}}}
		if strings.HasSuffix(name, "!") {
			device.Health = pluginapi.Unhealthy
		}
		list = append(list, device)
	}
	s.changes <- list
}

func (s *sample) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	if s.silent {
		return nil, errors.New("not yet")
	}
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

func (s *sample) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		if s.mute {
			return errors.New("nothing to list")
		}
		select {
		case <-stream.Context().Done():
			return nil
		case list := <-s.changes:
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (s *sample) GetPreferredAllocation(context.Context, *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: s.prefer}}}, nil
}

func (s *sample) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		return nil, fmt.Errorf("out of order")
	}
	ids := req.ContainerRequests[0].DevicesIds
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"THINGS": strings.Join(ids, ",")}, Annotations: map[string]string{"thing": "yes"},
		Devices:    []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/thing", Permissions: "rw"}},
		Mounts:     []*pluginapi.Mount{{HostPath: "/h", ContainerPath: "/c", ReadOnly: true}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "example.com/thing=" + ids[0]}},
	}}}, nil
}

func (s *sample) PreStartContainer(_ context.Context, req *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared = append(s.prepared, req.DevicesIds...)
	return &pluginapi.PreStartContainerResponse{}, nil
}
