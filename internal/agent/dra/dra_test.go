package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driverName = "gpu.example.com"

// driver is a whole resource driver, in both versions of the API.
type driver struct {
	drav1.UnimplementedDRAPluginServer
	healthv1.UnimplementedDRAResourceHealthServer
	socket string
	// words are what it says of its devices; a nil one ends the stream.
	words chan *healthv1.NodeWatchResourcesResponse

	mu    sync.Mutex
	calls []string
	fail  string
}

func startDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{socket: filepath.Join(t.TempDir(), "dra.sock"), words: make(chan *healthv1.NodeWatchResourcesResponse)}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	drav1.RegisterDRAPluginServer(server, d)
	healthv1.RegisterDRAResourceHealthServer(server, d)
	healthv1alpha1.RegisterDRAResourceHealthServer(server, healthv1.V1ServerWrapper{Server: d})
	drav1beta1.RegisterDRAPluginServer(server, old{d: d})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
	return d
}

func (d *driver) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest,
	stream grpc.ServerStreamingServer[healthv1.NodeWatchResourcesResponse]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case word := <-d.words:
			if word == nil {
				return errors.New("restarting")
			}
			if err := stream.Send(word); err != nil {
				return err
			}
		}
	}
}

func (d *driver) note(call, name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call+" "+name)
	return d.fail
}

func (d *driver) NodePrepareResources(_ context.Context, req *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse,
	error) {
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range req.Claims {
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Error: d.note("prepare", c.Name), Devices: []*drav1.Device{
			{RequestNames: []string{"big"}, PoolName: "n1", DeviceName: "gpu-0",
				CdiDeviceIds: []string{"example.com/gpu=" + c.Name + "-0"}},
			{RequestNames: []string{"small/first"}, PoolName: "n1", DeviceName: "gpu-1",
				CdiDeviceIds: []string{"example.com/gpu=" + c.Name + "-1"}},
		}}
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(_ context.Context, req *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse,
	error) {
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range req.Claims {
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{Error: d.note("unprepare", c.Name)}
	}
	return out, nil
}

// took returns what was asked of the driver since the last time.
func (d *driver) took() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := strings.Join(d.calls, ", ")
	d.calls = nil
	return out
}

// old is the driver as drivers of the first version are.
type old struct {
	drav1beta1.UnimplementedDRAPluginServer
	d *driver
}

func (o old) NodePrepareResources(_ context.Context, req *drav1beta1.NodePrepareResourcesRequest) (*drav1beta1.NodePrepareResourcesResponse,
	error) {
	out := &drav1beta1.NodePrepareResourcesResponse{Claims: map[string]*drav1beta1.NodePrepareResourceResponse{}}
	for _, c := range req.Claims {
		o.d.note("old prepare", c.Name)
		out.Claims[c.Uid] = &drav1beta1.NodePrepareResourceResponse{Devices: []*drav1beta1.Device{{PoolName: "n1", DeviceName: "gpu-0",
			CdiDeviceIds: []string{"example.com/gpu=old"}}}}
	}
	return out, nil
}

func claim(name string, reserved ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "big", Driver: driverName, Pool: "n1", Device: "gpu-0"}, {Request: "small/first", Driver: driverName, Pool: "n1",
				Device: "gpu-1"}}}}
	for _, pod := range reserved {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod,
			UID: types.UID(pod)})
	}
	return c
}

// pod uses a claim as a whole in one container, a request of it in another,
// and nothing in a third.
func pod(name, claim string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}, Spec: v1.PodSpec{
		ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		Containers: []v1.Container{
			{Name: "all", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}},
			{Name: "one", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu", Request: "small"}}}},
			{Name: "none"},
		}}}
}

func start(t *testing.T, root string, d *driver, versions []string, objects ...runtime.Object) *Manager {
	t.Helper()
	m, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: root, NodeName: "n1", Client: fake.NewClientset(objects...),
		Changed: func(types.UID) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.drivers.close)
	if d != nil {
		if err := m.Register(t.Context(), driverName, d.socket, versions); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestLifeOfAClaim(t *testing.T) {
	root, d := t.TempDir(), startDriver(t)
	first, second, gpu := pod("first", "gpu"), pod("second", "gpu"), claim("gpu", "first", "second")
	m := start(t, root, d, []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}, gpu)
	if err := m.Prepare(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"[example.com/gpu=gpu-0 example.com/gpu=gpu-1]", "[example.com/gpu=gpu-1]", "[]"} {
		ids, err := m.Devices(first, &first.Spec.Containers[i])
		if got := fmt.Sprint(ids); err != nil || got != want {
			t.Errorf("container %s gets %s, %v; want %s", first.Spec.Containers[i].Name, got, err, want)
		}
	}
	if held := m.HeldBy(first, &first.Spec.Containers[1]); len(held) != 1 || held[0].ClaimName != "gpu" ||
		len(held[0].ClaimResources) != 1 || held[0].ClaimResources[0].DeviceName != "gpu-1" {
		t.Errorf("pod resources: %v", held)
	}
	// Preparing again asks no one; a second pod shares what is prepared.
	if err := errors.Join(m.Prepare(t.Context(), first), m.Prepare(t.Context(), second)); err != nil {
		t.Fatal(err)
	}
	if got := d.took(); got != "prepare gpu" {
		t.Errorf("the driver was asked to %s", got)
	}
	// After a restart the driver is asked again before anything is handed out.
	m = start(t, root, d, []string{"v1.DRAPlugin"}, gpu)
	if _, err := m.Devices(first, &first.Spec.Containers[0]); err == nil {
		t.Error("devices were handed out on the word of an agent that has ended")
	}
	if err := m.Prepare(t.Context(), first); err != nil || d.took() != "prepare gpu" {
		t.Errorf("preparing again: %v", err)
	}
	// The claim is given back with its last pod, and only when that works.
	if err := m.Unprepare(t.Context(), "first"); err != nil || d.took() != "" {
		t.Errorf("giving back a shared claim: %v", err)
	}
	d.fail = "busy"
	if err := m.Unprepare(t.Context(), "second"); err == nil || !strings.Contains(err.Error(), "failed for claim default/gpu: busy") {
		t.Errorf("a driver that fails: %v", err)
	}
	d.fail = ""
	m = start(t, root, d, []string{"v1.DRAPlugin"}, gpu)
	if err := m.Orphans(t.Context(), func(types.UID) bool { return false }); err != nil {
		t.Error(err)
	}
	if got := d.took(); got != "unprepare gpu, unprepare gpu" {
		t.Errorf("the driver was asked to %s", got)
	}
	if m = start(t, root, nil, nil, gpu); len(m.claims) != 0 {
		t.Error("the claim is still noted")
	}
}

func TestDriversOfTheFirstVersion(t *testing.T) {
	d := startDriver(t)
	m := start(t, t.TempDir(), d, []string{"v1beta1.DRAPlugin"}, claim("gpu", "p"))
	p := pod("p", "gpu")
	if err := m.Prepare(t.Context(), p); err != nil || d.took() != "old prepare gpu" {
		t.Error(err)
	}
	if ids, err := m.Devices(p, &p.Spec.Containers[1]); err != nil || !slices.Equal(ids, []string{"example.com/gpu=old"}) {
		t.Error(ids, err)
	}
	if err := m.Register(t.Context(), driverName, d.socket, []string{"v2"}); err == nil {
		t.Error("an unknown version was accepted")
	}
}

func TestClaimsThatCannotBeUsed(t *testing.T) {
	d := startDriver(t)
	open := claim("open", "p")
	open.Status.Allocation = nil
	m := start(t, t.TempDir(), d, []string{"v1.DRAPlugin"}, open, claim("others", "q"), claim("gpu", "p", "lost"))
	template := pod("p", "")
	name := "template"
	template.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &name}
	for want, p := range map[string]*v1.Pod{
		"is not allocated": pod("p", "open"), "is not allowed to use resource claim others": pod("p", "others"),
		"failed to fetch ResourceClaim missing": pod("p", "missing"), "is not known yet": template,
	} {
		if err := m.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	d.fail = "no power"
	if err := m.Prepare(t.Context(), pod("p", "gpu")); err == nil || !strings.Contains(err.Error(), "no power") {
		t.Error(err)
	}
	m.Deregister(driverName, d.socket)
	if err := m.Prepare(t.Context(), pod("lost", "gpu")); err == nil || !strings.Contains(err.Error(),
		"driver gpu.example.com is not registered") {
		t.Error(err)
	}
}

// TestSlicesOfAbsentDriversAreRemoved: all at the start, and those of a driver
// that went once it has been away for long enough.
func TestSlicesOfAbsentDriversAreRemoved(t *testing.T) {
	client := fake.NewClientset()
	deleted := make(chan string, 10)
	failures := 1
	client.PrependReactor("delete-collection", "resourceslices", func(a ktesting.Action) (bool, runtime.Object, error) {
		if failures > 0 {
			failures--
			return true, nil, apierrors.NewInternalError(errors.New("not now"))
		}
		deleted <- a.(ktesting.DeleteCollectionAction).GetListRestrictions().Fields.String()
		return true, nil, nil
	})
	m, err := New(Config{Log: slog.New(slog.DiscardHandler), RootDir: t.TempDir(), NodeName: "n1", Client: client,
		Changed: func(types.UID) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	if got := <-deleted; got != "spec.nodeName=n1" {
		t.Errorf("removed %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The clock of the rest is given.
	m.Deregister(driverName, "gone.sock")
	since := m.drivers.absent[driverName]
	if got := m.drivers.due(since); !got.Equal(since.Add(absence)) {
		t.Errorf("due at %v, gone since %v", got, since)
	}
	if names := m.drivers.overdue(since.Add(absence - time.Nanosecond)); len(names) != 0 {
		t.Errorf("%v too early", names)
	}
	if names := m.drivers.overdue(since.Add(absence)); !slices.Equal(names, []string{driverName}) || len(m.drivers.absent) != 0 {
		t.Errorf("%v are overdue", names)
	}
	m.drivers.insist(t.Context(), driverName)
	if got := <-deleted; got != "spec.driver=gpu.example.com,spec.nodeName=n1" {
		t.Errorf("removed %s", got)
	}
}

func TestFileOfAKubeletIsRead(t *testing.T) {
	const recorded = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",` +
		`\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",` +
		`\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},` +
		`\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",` +
		`\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":1656016162}`
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, []byte(recorded), 0o600); err != nil {
		t.Fatal(err)
	}
	claims, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	info := claims["067798be-454e-4be4-9047-1aa06aea63f7"]
	if info == nil || info.DriverState["test-driver.cdi.k8s.io"].Devices[0].CDIDeviceIDs[0] != "example.com/example=cdi-example" {
		t.Errorf("read %+v", info)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(recorded, "dev-1", "dev-2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := load(path); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Errorf("a changed file: %v", err)
	}
}
