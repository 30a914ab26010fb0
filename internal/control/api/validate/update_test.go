package validate_test

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	dra "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

// TestUpdates reads testdata/updates.txt: what may change, and what clients are
// told of what may not.
func TestUpdates(t *testing.T) {
	data, err := os.ReadFile("testdata/updates.txt")
	if err != nil {
		t.Fatal(err)
	}
	first := firstOf(t)
	for _, block := range strings.Split(string(data), "\n\n") {
		var lines []string
		for _, l := range strings.Split(strings.TrimSpace(block), "\n") {
			if !strings.HasPrefix(l, "#") {
				lines = append(lines, l)
			}
		}
		t.Run(lines[0], func(t *testing.T) {
			kind, patches, _ := strings.Cut(lines[0], " ")
			before, after, ok := strings.Cut(patches, " => ")
			if !ok || first[kind] == nil {
				t.Fatalf("not a case: %s", lines[0])
			}
			old := merged(t, first[kind], before)
			old.(metav1.Object).SetResourceVersion("1")
			compare(t, checkUpdate(merged(t, old, after), old), lines[1:])
		})
	}
}

func makePod(t *testing.T, patch string) *v1.Pod {
	t.Helper()
	p := merged(t, firstOf(t)["Pod"], patch).(*v1.Pod)
	p.ResourceVersion = "1"
	return p
}

const sized = `{"spec":{"containers":[{"name":"a","image":"x:1","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1"}}}]}}`

func TestResize(t *testing.T) {
	set := func(kind, cpu string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			list := p.Spec.Containers[0].Resources.Requests
			if kind == "limits" {
				list = p.Spec.Containers[0].Resources.Limits
			}
			list[v1.ResourceCPU] = resource.MustParse(cpu)
		}
	}
	for _, c := range []struct {
		name   string
		old    string
		change func(*v1.Pod)
		want   []string
	}{
		{"more", sized, set("requests", "1500m"), nil},
		{"new policy", sized, func(p *v1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU,
				RestartPolicy: v1.RestartContainer}}
		}, nil},
		{"above the limit", sized, set("requests", "3"),
			[]string{"spec.containers[0].resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2"}},
		{"limit gone", sized, func(p *v1.Pod) { delete(p.Spec.Containers[0].Resources.Limits, v1.ResourceCPU) },
			[]string{"spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"}},
		{"image", sized, func(p *v1.Pod) { p.Spec.Containers[0].Image = "y" },
			[]string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"renamed", sized, func(p *v1.Pod) { p.Spec.Containers[0].Name = "other" },
			[]string{"spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"}},
		{"added", sized, func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
			[]string{"spec.containers: Forbidden: containers may not be added or removed on resize"}},
		{"storage", sized, func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = resource.MustParse("1Gi")
		}, []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"quality", `{}`, func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		}, []string{"spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"}},
		{"static", `{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"nodeName":"n"}}`, func(*v1.Pod) {},
			[]string{"<nil>: Forbidden: static pods cannot be resized"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := makePod(t, c.old)
			changed := old.DeepCopy()
			c.change(changed)
			got := validate.PodResize(changed, old)
			if c.name == "static" {
				if len(got) != 1 || !strings.Contains(got[0].Error(), "static pods cannot be resized") {
					t.Errorf("got %v", got)
				}
				return
			}
			compare(t, got, c.want)
		})
	}
}

func TestEphemeralContainers(t *testing.T) {
	old := makePod(t, `{"spec":{"ephemeralContainers":[{"name":"e","image":"x"}]}}`)
	added := old.DeepCopy()
	added.Spec.EphemeralContainers = append(added.Spec.EphemeralContainers, *old.Spec.EphemeralContainers[0].DeepCopy())
	added.Spec.EphemeralContainers[1].Name = "f"
	compare(t, validate.PodEphemeralContainers(added, old), nil)
	added.Spec.EphemeralContainers[1].Name = "a"
	compare(t, validate.PodEphemeralContainers(added, old), []string{"spec.ephemeralContainers[1].name: Duplicate value: \"a\""})
	gone := old.DeepCopy()
	gone.Spec.EphemeralContainers = nil
	compare(t, validate.PodEphemeralContainers(gone, old),
		[]string{"spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed"})
	other := old.DeepCopy()
	other.Spec.EphemeralContainers[0].Image = "y"
	compare(t, validate.PodEphemeralContainers(other, old),
		[]string{"spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be changed"})
}

func TestPodStatus(t *testing.T) {
	ended := func(code int32) v1.ContainerStatus {
		return v1.ContainerStatus{Name: "a", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}
	}
	again := v1.ContainerStatus{Name: "a", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	refused := []string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}
	for _, c := range []struct {
		name, old string
		before    v1.ContainerStatus
		want      []string
	}{
		{"always", `{}`, ended(0), nil},
		{"never", `{"spec":{"restartPolicy":"Never"}}`, ended(1), refused},
		{"on failure, failed", `{"spec":{"restartPolicy":"OnFailure"}}`, ended(1), nil},
		{"on failure, done", `{"spec":{"restartPolicy":"OnFailure"}}`, ended(0), refused},
		{"another may restart all",
			`{"spec":{"restartPolicy":"Never","containers":[{"name":"a","image":"x"},{"name":"b","image":"x",` +
				`"restartPolicyRules":[{"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[42]}}]}]}}`, ended(1), nil},
		{"own policy", `{"spec":{"restartPolicy":"Never","containers":[{"name":"a","image":"x","restartPolicy":"Always"}]}}`, ended(1),
			nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := makePod(t, c.old)
			changed := old.DeepCopy()
			old.Status.ContainerStatuses = []v1.ContainerStatus{c.before}
			changed.Status.ContainerStatuses = []v1.ContainerStatus{again}
			compare(t, checkStatusUpdate(changed, old), c.want)
		})
	}
	old := makePod(t, `{"spec":{"nodeName":"n"}}`)
	old.Status.QOSClass = v1.PodQOSBestEffort
	changed := old.DeepCopy()
	changed.Status.QOSClass = v1.PodQOSBurstable
	changed.Status.NominatedNodeName = "other"
	changed.Status.PodIPs = []v1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}, {IP: "x"}}
	compare(t, checkStatusUpdate(changed, old), []string{
		"status.qosClass: Invalid value: \"Burstable\": field is immutable",
		"status.nominatedNodeName: Forbidden: may not be set once the pod is bound to a node",
		"status.podIPs[2]: Invalid value: \"x\"",
		"status.podIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\",\"x\"]: may specify no more than one IP for each IP family",
	})
}

func TestBinding(t *testing.T) {
	b := &v1.Binding{Target: v1.ObjectReference{Kind: "Node", Name: "n"}}
	compare(t, validate.PodBinding(b), nil)
	b.Target = v1.ObjectReference{Kind: "Pod"}
	compare(t, validate.PodBinding(b), []string{"target.kind: Unsupported value: \"Pod\"", "target.name: Required value"})
}

func TestNamespaces(t *testing.T) {
	ns := firstOf(t)["Namespace"].(*v1.Namespace)
	ns.ResourceVersion = "1"
	ending := ns.DeepCopy()
	ending.Status.Phase = v1.NamespaceTerminating
	compare(t, checkStatusUpdate(ending, ns),
		[]string{"status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"})
	odd := ns.DeepCopy()
	odd.Spec.Finalizers = []v1.FinalizerName{"not good"}
	if len(validate.NamespaceFinalize(odd, ns)) == 0 {
		t.Error("a finalizer with a space was accepted")
	}
	empty := ns.DeepCopy()
	empty.Spec.Finalizers = nil
	compare(t, validate.NamespaceFinalize(empty, ns), nil)
}

// A writer of pods/status can hide a pod's containers no more than one of the pod can.
func TestStatusKeepsAnnotations(t *testing.T) {
	old := makePod(t, `{"spec":{"nodeName":"n"}}`)
	hidden := old.DeepCopy()
	hidden.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
	compare(t, checkStatusUpdate(hidden, old),
		[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"})
	compare(t, validate.PodEphemeralContainers(hidden, old),
		[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"})
	compare(t, validate.PodResize(hidden, old),
		[]string{"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"})
	noted := old.DeepCopy()
	noted.Annotations = map[string]string{"note": "x"}
	compare(t, checkStatusUpdate(noted, old), nil)
}

// The addresses of a pod from before the rules became strict may stay in its status.
func TestStatusAddresses(t *testing.T) {
	old := makePod(t, `{}`)
	old.Status.PodIPs = []v1.PodIP{{IP: "010.0.0.1"}}
	same := old.DeepCopy()
	same.Status.Message = "x"
	compare(t, checkStatusUpdate(same, old), nil)
	other := old.DeepCopy()
	other.Status.PodIPs = []v1.PodIP{{IP: "010.0.0.2"}}
	compare(t, checkStatusUpdate(other, old), []string{"status.podIPs[0]: Invalid value: \"010.0.0.2\": must not have leading 0s"})
}

// Results are of devices that were asked for, and only of those that were allocated.
func TestClaimStatus(t *testing.T) {
	old := firstOf(t)["ResourceClaim"].(*dra.ResourceClaim)
	old.ResourceVersion = "1"
	request := old.Spec.Devices.Requests[0].Name
	changed := old.DeepCopy()
	changed.Status.Allocation = &dra.AllocationResult{Devices: dra.DeviceAllocationResult{Results: []dra.DeviceRequestAllocationResult{
		{Request: request, Driver: "d.example.com", Pool: "p", Device: "one"}}}}
	changed.Status.Devices = []dra.AllocatedDeviceStatus{{Driver: "d.example.com", Pool: "p", Device: "one"}}
	changed.Status.ReservedFor = []dra.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	compare(t, checkStatusUpdate(changed, old), nil)
	changed.Status.Allocation.Devices.Results[0].Request = "gone"
	changed.Status.Devices[0].Device = "two"
	changed.Status.ReservedFor[0].UID = ""
	compare(t, checkStatusUpdate(changed, old), []string{
		"status.reservedFor[0].uid: Required value",
		"status.devices[0]: Invalid value: \"d.example.com/p/two\": must be an allocated device in the claim",
		"status.allocation.devices.results[0].request: Invalid value: \"gone\": must be the name of a request",
	})
}
