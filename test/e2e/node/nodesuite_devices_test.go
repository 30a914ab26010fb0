package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestDeviceSuite asks what upstream's node suites ask of device plugins, the
// pod resources API and the static CPU policy, and what TestDevicePlugin
// and TestExclusiveCPUs do not show already.
func TestDeviceSuite(t *testing.T) {
	kit.OnlyInAll(t, "26 s; TestDevicePlugin and TestExclusiveCPUs run")
	c := kit.NewCluster(t, agentFlags(t, staticPolicy)...)
	c.Up()
	thing := startPlugin(c, "example.com/thing", filepath.Join(c.Dir, "agent/device-plugins/thing.sock"), "a", "b")
	thing.register()
	offered(c, "example.com/thing", 2, 2)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *kit.Cluster, *devicePlugin)
	}{
		{"an allocation under way is not told", testAllocationUnderWay},
		{"what pod resources tell", testPodResources},
		{"figures of processors", testCPUFigures},
		{"plugins take over", testTakeOver},
		{"critical pods", testCriticalPods},
		{"devices after a reboot", testDevicesAfterAReboot},
		{"a mirror outlives its pod", testMirrorOutlives},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(t, c, thing) })
	}
}

const oneThing = `{limits: {example.com/thing: "1"}}`

// testAllocationUnderWay: the pod is told of while its plugin still thinks, but
// no device of it.
func testAllocationUnderWay(t *testing.T, c *kit.Cluster, thing *devicePlugin) {
	asked, answer := make(chan struct{}), make(chan struct{})
	thing.mu.Lock()
	thing.pause = func() { close(asked); <-answer }
	thing.mu.Unlock()
	c.Apply(kit.SimplePod("slow", oneThing))
	<-asked
	if got, known := podResources(c)["slow"]; !known || len(got.Devices) != 0 {
		t.Errorf("while the plugin thinks: %v, %v", known, got)
	}
	thing.mu.Lock()
	thing.pause = nil
	thing.mu.Unlock()
	close(answer)
	c.WaitReady("default", "app=slow", 1)
	if got := podResources(c).of("slow").Devices; len(got) != 1 || len(got[0].DeviceIds) != 1 {
		t.Errorf("once it has answered: %v", got)
	}
	c.Kubectl("delete", "pod", "slow", "--wait")
}

const manyContainers = `
apiVersion: v1
kind: Pod
metadata: {name: many, labels: {app: many}}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: first, image: "berth.dev/toolbox:1", command: [sh, -c, "exit 0"], resources: {limits: {example.com/thing: "1"}}}
  - {name: beside, image: "berth.dev/toolbox:1", args: [serve], restartPolicy: Always, resources: {limits: {example.com/thing: "1"}}}
  containers: [{name: main, image: "berth.dev/toolbox:1", command: [sleep, "1000"], resources: {limits: {example.com/thing: "1"}}}]
`

// testPodResources lists pods with and without resources of their own; sidecars
// but no init containers, which leave what they had to them; and no pod that is
// over. What it had is free.
func testPodResources(t *testing.T, c *kit.Cluster, _ *devicePlugin) {
	c.Apply(kit.SimplePod("plain", "") + "---" + strings.Replace(kit.SimplePod("over", oneThing), "args: [serve]",
		"command: [sh, -c, \"exit 0\"]",
		1) + "  restartPolicy: Never\n")
	c.WaitReady("default", "app=plain", 1)
	c.Eventually("the end of over", func() (bool, string) {
		p := c.Pods("default", "app=over")
		return len(p) == 1 && p[0].Status.Phase == v1.PodSucceeded, fmt.Sprint(len(p))
	})
	c.Apply(manyContainers)
	c.WaitReady("default", "app=many", 1)
	if got := heldByPods(c); got != "many/beside [] a; many/main [] b; plain/c [] " {
		t.Errorf("pod resources are %q", got)
	}
	c.Kubectl("delete", "pod", "plain", "over", "many", "--wait")
	c.Eventually("nothing is held", func() (bool, string) { got := heldByPods(c); return got == "", got })
}

// heldByPods is what the pod resources API lists of the default namespace: each
// container with its CPUs and devices.
func heldByPods(c *kit.Cluster) string {
	c.T.Helper()
	conn := dial(c.T, filepath.Join(c.Dir, "agent", "pod-resources", "kubelet.sock"))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	list, err := podresourcesapi.NewPodResourcesListerClient(conn).List(ctx, &podresourcesapi.ListPodResourcesRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		c.T.Fatal(err)
	}
	var out []string
	for _, p := range list.PodResources {
		for _, entry := range p.Containers {
			if p.Namespace != "default" {
				continue
			}
			var ids []string
			for _, d := range entry.Devices {
				ids = append(ids, d.DeviceIds...)
			}
			out = append(out, fmt.Sprint(p.Name, "/", entry.Name, " ", entry.CpuIds, " ", strings.Join(ids, ",")))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// testCPUFigures follows the pool of shared CPUs through the life
// of a container that owns one.
func testCPUFigures(t *testing.T, c *kit.Cluster, _ *devicePlugin) {
	conn := dial(t, filepath.Join(c.Dir, "agent", "pod-resources", "kubelet.sock"))
	defer conn.Close()
	all, err := podresourcesapi.NewPodResourcesListerClient(conn).GetAllocatableResources(t.Context(),
		&podresourcesapi.AllocatableResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(all.CpuIds) == 0 || len(all.Devices) != 2 {
		t.Fatalf("allocatable: %v, %v", all, err)
	}
	idle := len(all.CpuIds)
	figures := func(owned int) {
		t.Helper()
		for _, want := range []string{
			fmt.Sprintf("kubelet_cpu_manager_shared_pool_size_millicores %d", (idle-owned)*1000),
			fmt.Sprintf("kubelet_cpu_manager_exclusive_cpu_allocation_count %d", owned),
			fmt.Sprintf("kubelet_cpu_manager_allocation_per_numa{numa_node=\"0\"} %d", owned),
		} {
			c.Eventually(want, func() (bool, string) {
				return slices.Contains(strings.Split(strings.ReplaceAll(c.NodeProxy("metrics"), "e+03", "000"), "\n"), want), ""
			})
		}
	}
	figures(0)
	c.Apply(kit.SimplePod("owner", `{limits: {cpu: "1", memory: 32Mi}}`))
	c.WaitReady("default", "app=owner", 1)
	figures(1)
	if got := heldByPods(c); got != "owner/c [1] " {
		t.Errorf("pod resources are %q", got)
	}
	c.Kubectl("delete", "pod", "owner", "--wait")
	figures(0)
	metrics := c.NodeProxy("metrics")
	for _, want := range []string{
		`kubelet_container_aligned_compute_resources_count{boundary="uncore_cache",scope="container"} 1`,
		`kubelet_pod_resources_endpoint_requests_get_allocatable{server_api_version="v1"} 1`,
		`kubelet_device_plugin_registration_total{resource_name="example.com/thing"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// testTakeOver: a second plugin takes the resource over and gives it back when
// it goes, and nobody's pods notice.
func testTakeOver(t *testing.T, c *kit.Cluster, first *devicePlugin) {
	c.Apply(kit.SimplePod("before", oneThing))
	c.WaitReady("default", "app=before", 1)
	before := c.Container("before")
	second := startPlugin(c, first.resource, filepath.Join(filepath.Dir(first.socket), "second.sock"), "a", "b", "c")
	second.register()
	offered(c, "example.com/thing", 3, 3)
	c.Apply(kit.SimplePod("with-both", oneThing))
	c.WaitReady("default", "app=with-both", 1)
	second.stop()
	offered(c, "example.com/thing", 2, 2)
	c.Kubectl("delete", "pod", "with-both", "--wait")
	c.Apply(kit.SimplePod("after", oneThing))
	c.WaitReady("default", "app=after", 1)
	if got := heldByPods(c); got != "after/c [] b; before/c [] a" {
		t.Errorf("pod resources are %q", got)
	}
	if now := c.Container("before"); now.ID != before.ID {
		t.Errorf("the container was %s, is %s", before.ID, now.ID)
	}
	c.Kubectl("delete", "pod", "before", "after", "--wait")
}

// testDevicesAfterAReboot removes a pod's sandbox while no agent looks, as
// upstream plays a reboot. Its plugin does not come back: the pod is refused,
// while one that needs no device starts again.
func testDevicesAfterAReboot(t *testing.T, c *kit.Cluster, thing *devicePlugin) {
	c.Apply(kit.SimplePod("user", oneThing) + "---" + kit.SimplePod("plain", ""))
	c.WaitReady("default", "app=user", 1)
	c.WaitReady("default", "app=plain", 1)
	kit.KillProcess(t, c.PID())
	thing.stop()
	conn := dial(t, filepath.Join(c.Dir, "run", "containerd.sock"))
	defer conn.Close()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := cri.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if s.Metadata.Namespace == "default" {
			if _, err := cri.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.MustUp(t)
	c.Eventually("the refusal", func() (bool, string) {
		p := c.Pods("default", "app=user")
		if len(p) != 1 {
			return false, fmt.Sprint(len(p), " pods")
		}
		const want = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/thing"
		s := p[0].Status
		return s.Phase == v1.PodFailed && s.Reason == "UnexpectedAdmissionError" && strings.Contains(s.Message, want),
			fmt.Sprint(s.Phase, " ", s.Reason, ": ", s.Message)
	})
	c.WaitReady("default", "app=plain", 1)
	offered(c, "example.com/thing", 0, 0)
}
