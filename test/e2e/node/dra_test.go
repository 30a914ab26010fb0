package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// sampleDriver is a resource driver as a vendor would write it with the
// upstream helper: two devices, each of which sets a variable in the containers
// that get it, by a device description of its own for each claim.
type sampleDriver struct {
	t    testing.TB
	name string

	mu       sync.Mutex
	prepared map[types.UID][]string // devices by claim
}

func (d *sampleDriver) kind() string { return "vendor." + d.name + "/claim" }

func (d *sampleDriver) file(claim types.UID) string {
	return filepath.Join("/var/run/cdi", d.name+"-"+string(claim)+".json")
}

func (d *sampleDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		var names []string
		for _, r := range claim.Status.Allocation.Devices.Results {
			for other, held := range d.prepared {
				if other != claim.UID && slices.Contains(held, r.Device) {
					result.Err = fmt.Errorf("device %s is prepared for claim %s", r.Device, other)
				}
			}
			names = append(names, r.Device)
			result.Devices = append(result.Devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool,
				DeviceName:   r.Device,
				CDIDeviceIDs: []string{d.kind() + "=" + string(claim.UID)}})
		}
		spec, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": d.kind(),
			"devices": []any{map[string]any{"name": string(claim.UID),
				"containerEdits": map[string]any{"env": []string{"DEVICE=" + strings.Join(names, ",")},
					"deviceNodes": []any{map[string]any{"path": "/dev/sample", "hostPath": "/dev/null"}}}}}})
		if err == nil {
			err = os.WriteFile(d.file(claim.UID), spec, 0o644)
		}
		if result.Err == nil {
			result.Err = err
		}
		d.prepared[claim.UID] = names
		out[claim.UID] = result
	}
	return out, nil
}

func (d *sampleDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	for _, claim := range claims {
		delete(d.prepared, claim.UID)
		_ = os.Remove(d.file(claim.UID))
		out[claim.UID] = nil
	}
	return out, nil
}

func (d *sampleDriver) HandleError(_ context.Context, err error, msg string) {
	d.t.Logf("driver: %s: %v", msg, err) // the API server goes away in these tests
}

func (d *sampleDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *sampleDriver) holds() map[types.UID][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.prepared)
}

// startDriver registers a driver with the agent and publishes two devices.
func startDriver(c *kit.Cluster) *sampleDriver {
	c.T.Helper()
	d := &sampleDriver{t: c.T, name: fmt.Sprintf("e%d.example.com", os.Getpid()), prepared: map[types.UID][]string{}}
	data := filepath.Join(c.Dir, "agent", "plugins", d.name)
	for _, dir := range []string{"/var/run/cdi", data} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.T.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.name), kubeletplugin.NodeName(c.NodeName()),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(c.Dir, "agent", "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.HealthService(false))
	if err != nil {
		cancel()
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		helper.Stop()
		cancel()
		for claim := range d.holds() {
			_ = os.Remove(d.file(claim))
		}
	})
	err = helper.PublishResources(ctx,
		resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{c.NodeName(): {Slices: []resourceslice.Slice{{
			Devices: []resourceapi.Device{{Name: "red"}, {Name: "blue"}}}}}}})
	if err != nil {
		c.T.Fatal(err)
	}
	return d
}

func (d *sampleDriver) manifests() string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: sample}
spec: {selectors: [{cel: {expression: 'device.driver == "%s"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: own}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: sample}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: sample}}]}}
`, d.name)
}

func claimingPod(name, source string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: x, %s}]
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve], resources: {claims: [{name: x}]}}]
`, name, source)
}

// device is what a pod's container sees of its claim.
func device(c *kit.Cluster, pod string) string {
	c.T.Helper()
	for line := range strings.Lines(c.Kubectl("exec", pod, "--", "env")) {
		if name, ok := strings.CutPrefix(line, "DEVICE="); ok {
			c.Kubectl("exec", pod, "--", "stat", "/dev/sample")
			return strings.TrimSpace(name)
		}
	}
	c.T.Fatalf("pod %s has no device", pod)
	return ""
}

// TestResourceClaims takes devices from a driver's announcement to containers
// and back: a pod with a claim of its own, two that share one, one too many,
// which gets its device when another pod goes; over a kill of everything.
func TestResourceClaims(t *testing.T) {
	kit.OnlyInAll(t, "36 s; TestDevicePlugin runs")
	c := kit.NewCluster(t)
	c.Up()
	d := startDriver(c)
	c.Apply(d.manifests())
	c.Apply(claimingPod("own", "resourceClaimTemplateName: own") + "---" + claimingPod("a", "resourceClaimName: shared") + "---" +
		claimingPod("b", "resourceClaimName: shared"))
	for _, name := range []string{"own", "a", "b"} {
		c.WaitReady("default", "app="+name, 1)
	}
	own, a, b := device(c, "own"), device(c, "a"), device(c, "b")
	if a != b || own == a || !slices.Contains([]string{"red", "blue"}, own) || !slices.Contains([]string{"red", "blue"}, a) {
		t.Errorf("devices: own %q, shared %q and %q", own, a, b)
	}
	if n := len(d.holds()); n != 2 {
		t.Errorf("the driver prepared %d claims, want 2: %v", n, d.holds())
	}

	c.Apply(claimingPod("late", "resourceClaimTemplateName: own"))
	c.Eventually("the refusal", func() (bool, string) {
		for _, x := range c.Pods("default", "app=late")[0].Status.Conditions {
			if x.Type == v1.PodScheduled {
				return strings.Contains(x.Message, "cannot allocate all claims"), x.Message
			}
		}
		return false, "not decided yet"
	})

	before := map[string]kit.Container{"own": c.Container("own"), "a": c.Container("a")}
	kit.KillProcess(t, c.PID())
	c.MustUp(t)
	for name, old := range before {
		if now := c.Container(name); now.ID != old.ID {
			t.Errorf("after a restart the container of %s is %s, was %s", name, now.ID, old.ID)
		}
	}
	if got := podResources(c).of("own").DynamicResources; len(got) != 1 || len(got[0].ClaimResources) != 1 ||
		got[0].ClaimResources[0].DeviceName != own {
		t.Errorf("after a restart the pod resources API says %v", got)
	}

	c.Kubectl("delete", "pod", "own", "--wait")
	c.WaitReady("default", "app=late", 1)
	if late := device(c, "late"); late != own {
		t.Errorf("the device that came free is %q, the waiting pod got %q", own, late)
	}
	c.Kubectl("delete", "pod", "a", "--wait")
	if got := device(c, "b"); got != b {
		t.Errorf("the other user's device was %q, is %q", b, got)
	}
	c.Kubectl("delete", "pod", "b", "late", "--wait")
	c.Eventually("all devices given back", func() (bool, string) {
		list, err := c.Client.ResourceV1().ResourceClaims("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		state := fmt.Sprintf("driver holds %v; claims:", d.holds())
		ok := len(d.holds()) == 0 && len(list.Items) == 1
		for i := range list.Items {
			st := &list.Items[i].Status
			ok = ok && st.Allocation == nil && len(st.ReservedFor) == 0
			state += fmt.Sprintf(" %s %+v", list.Items[i].Name, st)
		}
		return ok, state
	})
}
