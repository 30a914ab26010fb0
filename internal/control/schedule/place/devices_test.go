package place

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// devicesOf says in a word what a claim gets.
func devicesOf(r *resourceapi.AllocationResult) string {
	if r == nil {
		return "is shared"
	}
	var names []string
	for _, d := range r.Devices.Results {
		names = append(names, fmt.Sprintf("%s=%s/%s/%s", d.Request, d.Driver, d.Pool, d.Device))
	}
	return "gets " + strings.Join(names, " ")
}

func testSlice(node string, n int) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("d%d", i)})
	}
	return s
}

func testClaim(name string, count int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
		Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}}}}}
}

func claiming(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
}

// TestNoDeviceIsGivenTwice places pods with claims in random order, with the
// API showing each write early, late, or never because it failed, and claims
// that are given back; it checks after each step that no device serves two
// claims, that none lies on another node than its pod, and that as many claims
// are served as there are devices for.
func TestNoDeviceIsGivenTwice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 3))
	full := 0
	for range 60 {
		s := NewSnapshot()
		nodes := 1 + r.IntN(3)
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			s.SetNode(testNode(name, "64", "64Gi", 200, nil))
			s.SetResourceSlice(testSlice(name, 2))
		}
		s.SetDeviceClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
		flights := map[types.NamespacedName]DevicePlan{}
		holders := map[string]types.NamespacedName{}
		held := map[types.NamespacedName][]string{}
		forget := func(key types.NamespacedName) {
			for _, d := range held[key] {
				delete(holders, d)
			}
			delete(held, key)
		}
		for step := range 60 {
			// What is in the air lands, or fails.
			for key, plan := range flights {
				switch r.IntN(3) {
				case 0:
					claim := testClaim(key.Name, 1)
					claim.Status.Allocation = plan.Claims[0].Result
					s.SetResourceClaim(claim)
					s.ForgetDevices(plan)
					delete(flights, key)
				case 1:
					s.ForgetDevices(plan)
					forget(key)
					delete(flights, key)
				}
			}
			if r.IntN(4) == 0 { // some claim's last user ends
				for key := range held {
					if _, flying := flights[key]; !flying {
						s.RemoveResourceClaim(key.Namespace, key.Name)
						forget(key)
						break
					}
				}
			}
			name := fmt.Sprintf("c%d", step)
			s.SetResourceClaim(testClaim(name, 1))
			p, err := Parse(testPod(name, "10m", claiming(name)))
			if err != nil {
				t.Fatal(err)
			}
			d := s.Place(p, Options{All: true})
			if d.Node == "" {
				if len(holders) != 2*nodes {
					t.Fatalf("refused with %d of %d devices taken: %s", len(holders), 2*nodes, d.Message())
				}
				full++
				s.RemoveResourceClaim("ns", name)
				continue
			}
			key := d.Devices.Claims[0].Claim
			for _, x := range d.Devices.Claims[0].Result.Devices.Results {
				id := x.Pool + "/" + x.Device
				if other, taken := holders[id]; taken {
					t.Fatalf("device %s given to %s and to %s", id, other, key)
				}
				if x.Pool != d.Node {
					t.Fatalf("pod on %s gets a device of %s", d.Node, x.Pool)
				}
				holders[id] = key
				held[key] = append(held[key], id)
			}
			s.AssumeDevices(d.Devices)
			flights[key] = d.Devices
		}
	}
	if full < 100 {
		t.Fatalf("only %d refusals: the test tests little", full)
	}
}

// TestUsersOfAPromisedClaim checks that a claim on its way to one pod serves a
// second pod with the very same devices, and that the promise lives as long as
// one of them relies on it.
func TestUsersOfAPromisedClaim(t *testing.T) {
	s := NewSnapshot()
	for _, name := range []string{"n0", "n1"} {
		s.SetNode(testNode(name, "4", "4Gi", 10, nil))
		s.SetResourceSlice(testSlice(name, 1))
	}
	s.SetDeviceClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	s.SetResourceClaim(testClaim("shared", 1))
	var plans []DevicePlan
	var nodes []string
	for _, name := range []string{"a", "b"} {
		p, err := Parse(testPod(name, "10m", claiming("shared")))
		if err != nil {
			t.Fatal(err)
		}
		d := s.Place(p, Options{All: true})
		if d.Node == "" || len(d.Devices.Claims) != 1 || d.Devices.Claims[0].Result == nil {
			t.Fatalf("pod %s: %+v %s", name, d.Devices, d.Message())
		}
		s.AssumeDevices(d.Devices)
		plans, nodes = append(plans, d.Devices), append(nodes, d.Node)
	}
	if nodes[0] != nodes[1] || plans[0].Claims[0].Result != plans[1].Claims[0].Result {
		t.Fatalf("two users of one claim: on %v with %s and %s", nodes, devicesOf(plans[0].Claims[0].Result),
			devicesOf(plans[1].Claims[0].Result))
	}
	key := plans[0].Claims[0].Claim
	s.ForgetDevices(plans[0])
	if s.devices.promised[key] == nil {
		t.Fatal("the promise went with the first of two users")
	}
	s.ForgetDevices(plans[1])
	if s.devices.promised[key] != nil {
		t.Fatal("the promise outlived its users")
	}
}

// TestSharesOfADevice gives parts of one device's memory to several claims, up
// to what it has, whether the API shows a share already, still hides it, or
// both are known for a moment.
func TestSharesOfADevice(t *testing.T) {
	s := NewSnapshot()
	s.SetNode(testNode("n0", "4", "4Gi", 10, nil))
	slice := testSlice("n0", 1)
	slice.Spec.Devices[0].AllowMultipleAllocations = ptr.To(true)
	slice.Spec.Devices[0].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi")}}
	s.SetResourceSlice(slice)
	s.SetDeviceClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	place := func(name string, change func(*resourceapi.ExactDeviceRequest)) Decision {
		t.Helper()
		claim := testClaim(name, 1)
		change(claim.Spec.Devices.Requests[0].Exactly)
		s.SetResourceClaim(claim)
		p, err := Parse(testPod(name, "10m", claiming(name)))
		if err != nil {
			t.Fatal(err)
		}
		return s.Place(p, Options{All: true})
	}
	asks := func(memory string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(memory)}}
		}
	}
	shares := map[types.UID]bool{}
	for _, name := range []string{"a", "b"} {
		d := place(name, asks("4Gi"))
		if d.Node == "" {
			t.Fatalf("%s is refused: %s", name, d.Message())
		}
		got := d.Devices.Claims[0].Result.Devices.Results[0]
		if got.ShareID == nil || shares[*got.ShareID] || got.ConsumedCapacity["memory"] != resource.MustParse("4Gi") {
			t.Fatalf("%s gets %+v", name, got)
		}
		shares[*got.ShareID] = true
		s.AssumeDevices(d.Devices)
		if name == "a" { // the API shows it before the placement is over
			claim := testClaim(name, 1)
			claim.Status.Allocation = d.Devices.Claims[0].Result
			s.SetResourceClaim(claim)
		}
	}
	if d := place("c", asks("4Gi")); d.Node != "" {
		t.Errorf("12 of 10 Gi were given away: %+v", d.Devices)
	}
	if d := place("d", asks("2Gi")); d.Node == "" {
		t.Errorf("8 of 10 Gi are taken and 2 are refused: %s", d.Message())
	}
}

// TestAdminAccessToATakenDevice: nothing that a claim holds keeps it out.
func TestAdminAccessToATakenDevice(t *testing.T) {
	s := NewSnapshot()
	s.SetNode(testNode("n0", "4", "4Gi", 10, nil))
	s.SetResourceSlice(testSlice("n0", 1))
	s.SetDeviceClass(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for _, c := range []struct {
		name  string
		admin bool
		ok    bool
	}{{"watcher", true, true}, {"user", false, true}, {"second", false, false}, {"other-watcher", true, true}} {
		claim := testClaim(c.name, 1)
		claim.Spec.Devices.Requests[0].Exactly.AdminAccess = &c.admin
		s.SetResourceClaim(claim)
		p, err := Parse(testPod(c.name, "10m", claiming(c.name)))
		if err != nil {
			t.Fatal(err)
		}
		d := s.Place(p, Options{All: true})
		if (d.Node != "") != c.ok {
			t.Errorf("%s goes to %q: %s", c.name, d.Node, d.Message())
		}
		s.AssumeDevices(d.Devices)
	}
}
