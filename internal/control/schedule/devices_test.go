package schedule

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func deviceSlice(node string, n int) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("d%d", i)})
	}
	return s
}

func gpuClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
}

func gpuClaim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("claim-" + name)},
		Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}}}}
}

func claimingPod(name, claim string) *v1.Pod {
	p := pod(name, "10m", 0)
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	return p
}

func getClaim(t *testing.T, c *fake.Clientset, name string) *resourceapi.ResourceClaim {
	t.Helper()
	claim, err := c.ResourceV1().ResourceClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("getting claim %s: %v", name, err)
	}
	return claim
}

func TestDevicesAreWrittenBeforeThePodIsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"), node("b", "1"), deviceSlice("b", 1), gpuClass(), gpuClaim("one"), gpuClaim("two"))
		c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "binding" {
				name := a.(clienttesting.CreateAction).GetObject().(*v1.Binding).Name
				if name == "r" {
					return false, nil, nil // it uses the other claim
				}
				obj, err := c.Tracker().Get(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "ns", "one")
				if err != nil {
					t.Error(err)
					return false, nil, nil
				}
				claim, found := obj.(*resourceapi.ResourceClaim), false
				for _, r := range claim.Status.ReservedFor {
					found = found || r.Name == name && r.UID == types.UID(name) && r.Resource == "pods"
				}
				if claim.Status.Allocation == nil || !found || len(claim.Finalizers) != 1 || claim.Finalizers[0] != resourceapi.Finalizer {
					t.Errorf("pod %s is bound while its claim shows %+v and finalizers %v", name, claim.Status, claim.Finalizers)
				}
			}
			return false, nil, nil
		})
		started(t, c)
		create(t, c, claimingPod("p", "one"))
		create(t, c, claimingPod("q", "one"))
		for _, name := range []string{"p", "q"} {
			if got := get(t, c, name).Spec.NodeName; got != "b" {
				t.Errorf("pod %s bound to %q, want b, which has the device", name, got)
			}
		}
		create(t, c, claimingPod("r", "two"))
		if got := get(t, c, "r").Spec.NodeName; got != "" {
			t.Fatalf("a pod was bound to %q though the only device is taken", got)
		}
		// The claim's users are gone and so are its devices' holders: what a
		// controller does in a cluster.
		claim := getClaim(t, c, "one")
		claim.Status = resourceapi.ResourceClaimStatus{}
		if _, err := c.ResourceV1().ResourceClaims("ns").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(backoffFirst) // virtual
		synctest.Wait()
		if got := get(t, c, "r").Spec.NodeName; got != "b" {
			t.Errorf("bound to %q after the device came free, want b", got)
		}
	})
}

func TestAClaimThatCannotBeWrittenKeepsThePodBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"), deviceSlice("a", 1), gpuClass(), gpuClaim("one"))
		failures := 2
		c.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if failures > 0 {
				failures--
				return true, nil, context.DeadlineExceeded
			}
			return false, nil, nil
		})
		started(t, c)
		create(t, c, claimingPod("p", "one"))
		if got := get(t, c, "p").Spec.NodeName; got != "" {
			t.Fatalf("bound to %q without its claim", got)
		}
		time.Sleep(10 * time.Second) // virtual
		synctest.Wait()
		if got := get(t, c, "p").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q, want a", got)
		}
	})
}

func TestUnreachableDevicesNobodyUsesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := gpuClaim("one")
		claim.Status.Allocation = &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r",
				Driver: "gpu.example", Pool: "gone", Device: "d0"}}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"gone"}}}}}}}
		c := newClient(node("a", "1"), deviceSlice("a", 1), gpuClass(), claim)
		started(t, c)
		create(t, c, claimingPod("p", "one"))
		time.Sleep(2 * backoffFirst) // virtual
		synctest.Wait()
		if got := get(t, c, "p").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q, want a", got)
		}
		if got := getClaim(t, c, "one").Status.Allocation.Devices.Results[0].Pool; got != "a" {
			t.Errorf("devices of pool %q, want a", got)
		}
	})
}

func TestPodsWaitForClaimsFromTemplates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(node("a", "1"), deviceSlice("a", 1), gpuClass())
		started(t, c)
		p := pod("p", "10m", 0)
		template, name := "t", "p-gpu-x"
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		create(t, c, p)
		if got := get(t, c, "p"); got.Spec.NodeName != "" || len(got.Status.Conditions) > 0 {
			t.Fatalf("bound to %q, conditions %v; want neither before the claim is made", got.Spec.NodeName, got.Status.Conditions)
		}
		claim := gpuClaim(name)
		yes := true
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: &yes}}
		if _, err := c.ResourceV1().ResourceClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p = get(t, c, "p")
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
		if _, err := c.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := get(t, c, "p").Spec.NodeName; got != "a" {
			t.Fatalf("bound to %q once its claim was made, want a", got)
		}
	})
}
