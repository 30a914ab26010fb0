package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const claimDriver = "gpu.example.com"

// driver is a whole resource driver that is found in the plugin directory.
type driver struct {
	drav1.UnimplementedDRAPluginServer
	registerapi.UnimplementedRegistrationServer
	socket, device string

	mu    sync.Mutex
	calls []string
}

func startDriver(t *testing.T, socket, device string) *driver {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{socket: socket, device: device}
	server := grpc.NewServer()
	drav1.RegisterDRAPluginServer(server, d)
	registerapi.RegisterRegistrationServer(server, d)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
	return d
}

func (d *driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: claimDriver, Endpoint: d.socket,
		SupportedVersions: []string{drav1.DRAPluginService}}, nil
}

func (d *driver) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse,
	error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *driver) note(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
}

func (d *driver) NodePrepareResources(_ context.Context, req *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse,
	error) {
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range req.Claims {
		d.note("prepare " + c.Name)
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{{PoolName: "n1", DeviceName: "one",
			CdiDeviceIds: []string{d.device}}}}
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(_ context.Context, req *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse,
	error) {
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range req.Claims {
		d.note("unprepare " + c.Name)
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

// TestClaimedDevice gives the device of an allocated claim to a real container,
// and gives it back when the pod is gone. The test allocates the claim, which
// is a scheduler's part.
func TestClaimedDevice(t *testing.T) {
	c := newCluster(t)
	kind := fmt.Sprintf("berth.example.com/test%d", os.Getpid())
	spec := `{"cdiVersion": "0.6.0", "kind": "` + kind + `", "devices": [{"name": "one", "containerEdits": {"env": ["CLAIMED=yes"]}}]}`
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("/var/run/cdi", strings.ReplaceAll(kind, "/", "-")+".json")
	if err := os.WriteFile(file, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })

	claim := "gpu"
	p := c.create("user", `[ "$CLAIMED" = yes ] || exit 1; while true; do sleep 3600; done`, func(p *v1.Pod) {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}}
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "mine"}}
		p.Spec.RestartPolicy = v1.RestartPolicyNever
	})
	allocated := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "default", UID: "claim-uid"}}
	allocated.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: claimDriver, Pool: "n1", Device: "one"}}}}
	allocated.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
	if err := c.api.Tracker().Add(allocated); err != nil {
		t.Fatal(err)
	}
	d := startDriver(t, filepath.Join(c.root, "plugins_registry", "gpu.sock"), kind+"=one")
	c.await("user", "running", running)

	// The next agent finds the claim in use and gives it back.
	c.halt()
	c.start()
	c.delete(p, 0)
	c.await("user", "gone", gone)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls[0] != "prepare gpu" || !slices.Contains(d.calls, "unprepare gpu") {
		t.Errorf("the driver was asked to %v", d.calls)
	}
}
