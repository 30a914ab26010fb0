package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berth-dev/berth/internal/agent/resource/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node has something of everything for container "own".
type node struct{}

func (node) HeldBy(_ types.UID, c string) []*api.ContainerDevices {
	if c != "own" {
		return nil
	}
	return []*api.ContainerDevices{{ResourceName: "example.com/thing", DeviceIds: []string{"a"}}}
}

func (node) Offered() []*api.ContainerDevices {
	return []*api.ContainerDevices{{ResourceName: "example.com/thing", DeviceIds: []string{"a"}}, {ResourceName: "example.com/thing",
		DeviceIds: []string{"b"}}}
}

func (node) CPUsOf(_ types.UID, c string) []int {
	if c != "own" {
		return nil
	}
	return []int{2, 3}
}

func (node) MemoryOf(_ types.UID, c string) []memory.Block {
	if c != "own" {
		return nil
	}
	return []memory.Block{{NUMAAffinity: []int{0, 1}, Type: v1.ResourceMemory, Size: 64}}
}

func (node) AllocatableCPUs() []int { return []int{1, 2, 3} }

func (node) AllocatableMemory() []memory.Block {
	return []memory.Block{{NUMAAffinity: []int{0}, Type: v1.ResourceMemory, Size: 1024}}
}

type claims struct{}

func (claims) HeldBy(_ *v1.Pod, c *v1.Container) []*api.DynamicResource {
	if c.Name != "own" {
		return nil
	}
	return []*api.DynamicResource{{ClaimName: "gpu", ClaimNamespace: "default"}}
}

func serve(t *testing.T, registry prometheus.Registerer) *grpc.ClientConn {
	t.Helper()
	always := v1.ContainerRestartPolicyAlways
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}, Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}}, Containers: []v1.Container{{Name: "own"},
			{Name: "shared"}}}}
	over := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "over", Namespace: "default"}, Status: v1.PodStatus{Phase: v1.PodSucceeded}}
	root := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Log: slog.New(slog.DiscardHandler), RootDir: root, Pods: func() []*v1.Pod { return []*v1.Pod{pod, over} },
			Devices: node{}, Assignments: node{}, Claims: claims{}, Metrics: registry})
	}()
	conn, err := grpc.NewClient("unix:"+filepath.Join(root, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestWhatIsReported(t *testing.T) {
	registry := prometheus.NewRegistry()
	conn := serve(t, registry)
	client := api.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &api.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	const want = `sidecar [] [] [] []; own [2 3] [resource_name:"example.com/thing" device_ids:"a"] [memory_type:"memory" size:64 ` +
		`topology:{nodes:{} nodes:{ID:1}}] [claim_name:"gpu" claim_namespace:"default"]; shared [] [] [] []; `
	text := ""
	for _, p := range list.PodResources {
		for _, c := range p.Containers {
			text += fmt.Sprint(c.Name, " ", c.CpuIds, " ", c.Devices, " ", c.Memory, " ", c.DynamicResources, "; ")
		}
	}
	// Generated messages print with a space here or there.
	if got := strings.Join(strings.Fields(text), " ") + " "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	one, err := client.Get(t.Context(), &api.GetPodResourcesRequest{PodNamespace: "default", PodName: "p"})
	if err != nil || len(one.PodResources.Containers) != 3 {
		t.Errorf("one pod: %v, %v", one, err)
	}
	for _, name := range []string{"none", "over"} {
		if _, err := client.Get(t.Context(), &api.GetPodResourcesRequest{PodNamespace: "default", PodName: name}); status.Code(
			err) != codes.NotFound {
			t.Errorf("pod %s: %v", name, err)
		}
	}
	all, err := client.GetAllocatableResources(t.Context(), &api.AllocatableResourcesRequest{})
	if err != nil || len(all.CpuIds) != 3 || len(all.Devices) != 2 || len(all.Memory) != 1 || all.Memory[0].Size != 1024 {
		t.Errorf("allocatable: %v, %v", all, err)
	}
	older, err := v1alpha1.NewPodResourcesListerClient(conn).List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil || len(older.PodResources) != 1 || older.PodResources[0].Containers[1].Devices[0].DeviceIds[0] != "a" {
		t.Errorf("the older API: %v, %v", older, err)
	}
	counts := `
# HELP kubelet_pod_resources_endpoint_errors_get Get requests to the pod resources API that failed.
# TYPE kubelet_pod_resources_endpoint_errors_get counter
kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 2
# HELP kubelet_pod_resources_endpoint_requests_list List requests to the pod resources API.
# TYPE kubelet_pod_resources_endpoint_requests_list counter
kubelet_pod_resources_endpoint_requests_list{server_api_version="v1"} 1
kubelet_pod_resources_endpoint_requests_list{server_api_version="v1alpha1"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(counts), "kubelet_pod_resources_endpoint_errors_get",
		"kubelet_pod_resources_endpoint_requests_list"); err != nil {
		t.Error(err)
	}
}

// TestTooManyRequestsAreRefused: the burst passes, and not much more.
func TestTooManyRequestsAreRefused(t *testing.T) {
	client := api.NewPodResourcesListerClient(serve(t, nil))
	refused := 0
	for range 20000 {
		_, err := client.List(t.Context(), &api.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		if status.Code(err) == codes.ResourceExhausted {
			refused++
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("no request was refused")
	}
}
