package place

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// deviceFeatures are the parts of dynamic resource allocation that this
// scheduler offers: alternatives, devices cut from others, taints, devices
// that several claims share, and administrative access, which admission keeps
// to namespaces that may have it.
var deviceFeatures = structured.Features{PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, ConsumableCapacity: true,
	AdminAccess: true}

// DevicePlan is what must be written to resource claims before a pod that uses
// them may be bound: each names the pod among its users.
type DevicePlan struct {
	Claims []ClaimPlan
}

// ClaimPlan is what one claim is to show.
type ClaimPlan struct {
	Claim types.NamespacedName
	// Result is what the claim gets; nil for one that has its devices.
	Result *resourceapi.AllocationResult
}

// Empty says that nothing has to be written.
func (p DevicePlan) Empty() bool { return len(p.Claims) == 0 }

// devices is the snapshot's share of dynamic resource allocation.
type devices struct {
	slices  map[string]*resourceapi.ResourceSlice
	classes map[string]*resourceapi.DeviceClass
	claims  map[types.NamespacedName]*resourceapi.ResourceClaim
	// promised are allocations of placements in flight, by claim: the API does
	// not show them yet. users counts the placements that rely on one.
	promised map[types.NamespacedName]*promise
	// compiled keeps compiled selectors; what a selector means never changes.
	compiled *cel.Cache
}

type promise struct {
	result *resourceapi.AllocationResult
	users  int
}

func newDevices() devices {
	return devices{slices: map[string]*resourceapi.ResourceSlice{}, classes: map[string]*resourceapi.DeviceClass{},
		claims: map[types.NamespacedName]*resourceapi.ResourceClaim{}, promised: map[types.NamespacedName]*promise{}}
}

// SetResourceSlice adds or replaces what a driver publishes.
func (s *Snapshot) SetResourceSlice(r *resourceapi.ResourceSlice) { s.devices.slices[r.Name] = r }

// RemoveResourceSlice forgets a slice.
func (s *Snapshot) RemoveResourceSlice(name string) { delete(s.devices.slices, name) }

// SetDeviceClass adds or replaces a device class.
func (s *Snapshot) SetDeviceClass(c *resourceapi.DeviceClass) { s.devices.classes[c.Name] = c }

// RemoveDeviceClass forgets a device class.
func (s *Snapshot) RemoveDeviceClass(name string) { delete(s.devices.classes, name) }

// SetResourceClaim adds or replaces a resource claim.
func (s *Snapshot) SetResourceClaim(c *resourceapi.ResourceClaim) {
	s.devices.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
}

// RemoveResourceClaim forgets a resource claim.
func (s *Snapshot) RemoveResourceClaim(namespace, name string) {
	delete(s.devices.claims, types.NamespacedName{Namespace: namespace, Name: name})
}

// ResourceClaim returns a resource claim, or nil.
func (s *Snapshot) ResourceClaim(key types.NamespacedName) *resourceapi.ResourceClaim {
	return s.devices.claims[key]
}

// AssumeDevices remembers what a placement in flight gives to claims, so that
// no other placement gets the same devices. ForgetDevices takes that back once
// SetResourceClaim showed it, or the placement failed.
func (s *Snapshot) AssumeDevices(plan DevicePlan) {
	for _, c := range plan.Claims {
		switch p := s.devices.promised[c.Claim]; {
		case c.Result == nil:
		case p != nil:
			p.users++
		default:
			s.devices.promised[c.Claim] = &promise{result: c.Result, users: 1}
		}
	}
}

// ForgetDevices undoes AssumeDevices.
func (s *Snapshot) ForgetDevices(plan DevicePlan) {
	for _, c := range plan.Claims {
		if p := s.devices.promised[c.Claim]; p != nil && c.Result != nil {
			if p.users--; p.users == 0 {
				delete(s.devices.promised, c.Claim)
			}
		}
	}
}

// allocation is what a claim has, or is about to get; nil for neither.
func (d *devices) allocation(key types.NamespacedName, claim *resourceapi.ResourceClaim) *resourceapi.AllocationResult {
	if claim.Status.Allocation != nil {
		return claim.Status.Allocation
	}
	if p := d.promised[key]; p != nil {
		return p.result
	}
	return nil
}

// taken is what claims hold or are promised: devices as a whole, and shares of
// devices. Administrative access takes nothing.
func (d *devices) taken() structured.AllocatedState {
	out := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	hold := func(a *resourceapi.AllocationResult) {
		for i := range a.Devices.Results {
			r := &a.Devices.Results[i]
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			switch {
			case r.AdminAccess != nil && *r.AdminAccess:
			case r.ShareID == nil:
				out.AllocatedDevices.Insert(id)
			default:
				// A claim may show its share and still be promised it.
				if share := structured.MakeSharedDeviceID(id, r.ShareID); !out.AllocatedSharedDeviceIDs.Has(share) {
					out.AllocatedSharedDeviceIDs.Insert(share)
					out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
				}
			}
		}
	}
	for _, claim := range d.claims {
		if claim.Status.Allocation != nil {
			hold(claim.Status.Allocation)
		}
	}
	for _, p := range d.promised {
		hold(p.result)
	}
	return out
}

// List and Get make the classes what the allocator wants.
func (d *devices) List() ([]*resourceapi.DeviceClass, error) {
	out := make([]*resourceapi.DeviceClass, 0, len(d.classes))
	for _, c := range d.classes {
		out = append(out, c)
	}
	return out, nil
}

// Get returns a class by its name.
func (d *devices) Get(name string) (*resourceapi.DeviceClass, error) {
	if c := d.classes[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("device class %s does not exist", name)
}

// AwaitsClaims says whether claims are still to be made from templates for the
// pod. Its status will tell.
func AwaitsClaims(pod *v1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); errors.Is(err, resourceclaim.ErrClaimNotFound) {
			return true
		}
	}
	return false
}

// deviceNeeds is what one pod's claims ask of a node.
type deviceNeeds struct {
	// having have devices already; open are to get some.
	having []*resourceapi.ResourceClaim
	at     []*resourceapi.AllocationResult // of having
	open   []*resourceapi.ResourceClaim
	// allocator is nil while open is empty. plans remembers its answers, since
	// a node is asked several times and what pods it holds changes none.
	allocator structured.Allocator
	plans     map[string]devicePlanned
}

type devicePlanned struct {
	results []resourceapi.AllocationResult
	refusal verdict
}

// lookDevices resolves the pod's resource claims; a non-empty reason means
// that no node can take the pod until claims or classes change.
func (c *cycle) lookDevices() (reason string) {
	pod := c.pod.Obj
	if len(pod.Spec.ResourceClaims) == 0 {
		return ""
	}
	needs := &deviceNeeds{plans: map[string]devicePlanned{}}
	d := &c.s.devices
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return err.Error()
		}
		if name == nil {
			continue // the template's maker decided that none is needed
		}
		key := types.NamespacedName{Namespace: pod.Namespace, Name: *name}
		claim := d.claims[key]
		if reason := unusable(pod, claim, *name, owned); reason != "" {
			return reason
		}
		if at := d.allocation(key, claim); at != nil {
			needs.having, needs.at = append(needs.having, claim), append(needs.at, at)
			continue
		}
		if missing := d.unknownClass(claim); missing != "" {
			return fmt.Sprintf("request %s does not exist", missing)
		}
		needs.open = append(needs.open, claim)
	}
	c.devices = needs
	if len(needs.open) == 0 {
		return ""
	}
	if d.compiled == nil {
		d.compiled = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	}
	var err error
	// The allocator takes a context for its log alone; nothing here blocks.
	needs.allocator, err = structured.NewAllocator(context.Background(), deviceFeatures,
		d.taken(), d, d.sortedSlices(), d.compiled)
	if err != nil {
		return fmt.Sprintf("allocating devices: %v", err)
	}
	return ""
}

// unusable says why a pod cannot use a claim on any node.
func unusable(pod *v1.Pod, claim *resourceapi.ResourceClaim, name string, owned bool) string {
	switch {
	case claim == nil:
		return fmt.Sprintf("resourceclaim %q not found", name)
	case claim.DeletionTimestamp != nil:
		return fmt.Sprintf("resourceclaim %q is being deleted", name)
	case owned && !metav1.IsControlledBy(claim, pod):
		return fmt.Sprintf("resourceclaim %q was not created for pod %q (pod is not owner)", name, pod.Namespace+"/"+pod.Name)
	case !reservedFor(claim, pod.UID) && len(claim.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize:
		return fmt.Sprintf("resourceclaim %q has %d users, which is the most", name, len(claim.Status.ReservedFor))
	}
	return ""
}

// unknownClass names the request of a claim whose class does not exist.
func (d *devices) unknownClass(claim *resourceapi.ResourceClaim) string {
	missing := func(request, class string) string {
		if class == "" || d.classes[class] != nil {
			return ""
		}
		return fmt.Sprintf("%s: device class %s", request, class)
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			if m := missing(r.Name, r.Exactly.DeviceClassName); m != "" {
				return m
			}
		}
		for k := range r.FirstAvailable {
			if m := missing(r.Name+"/"+r.FirstAvailable[k].Name, r.FirstAvailable[k].DeviceClassName); m != "" {
				return m
			}
		}
	}
	return ""
}

// sortedSlices lists slices by name, so that equal devices are taken in one
// order.
func (d *devices) sortedSlices() []*resourceapi.ResourceSlice {
	out := make([]*resourceapi.ResourceSlice, 0, len(d.slices))
	for _, s := range d.slices {
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func reservedFor(claim *resourceapi.ResourceClaim, pod types.UID) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod })
}

// devicesReach refuses a node where claims cannot be used, or not be given
// what they ask for. Taking pods off a node frees no device: claims hold them.
func (c *cycle) devicesReach(w *view) verdict {
	if c.devices == nil {
		return verdict{}
	}
	return c.devicesOn(w.obj).refusal
}

func (c *cycle) devicesOn(n *v1.Node) devicePlanned {
	needs := c.devices
	if known, ok := needs.plans[n.Name]; ok {
		return known
	}
	out := devicePlanned{}
	for _, at := range needs.at {
		if at.NodeSelector == nil {
			continue
		}
		if ok, err := corev1helpers.MatchNodeSelectorTerms(n, at.NodeSelector); err != nil || !ok {
			out.refusal = never("resourceclaim not available on the node")
		}
	}
	if out.refusal.ok() && needs.allocator != nil {
		results, err := needs.allocator.Allocate(context.Background(), n, needs.open)
		switch {
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			out.refusal = never("cannot allocate all claims: " + err.Error())
		case err != nil:
			out.refusal = never(strings.Join(strings.Fields(err.Error()), " "))
		case len(results) == 0:
			out.refusal = never("cannot allocate all claims")
		default:
			out.results = results
		}
	}
	needs.plans[n.Name] = out
	return out
}

// planDevices says what is to be written for a pod that goes to a node.
func (c *cycle) planDevices(n *v1.Node) DevicePlan {
	var plan DevicePlan
	if c.devices == nil {
		return plan
	}
	results := c.devicesOn(n).results
	for i, claim := range c.devices.open {
		plan.Claims = append(plan.Claims, ClaimPlan{types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, &results[i]})
	}
	for i, claim := range c.devices.having {
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		switch {
		case claim.Status.Allocation == nil: // promised
			plan.Claims = append(plan.Claims, ClaimPlan{key, c.devices.at[i]})
		case !reservedFor(claim, c.pod.Obj.UID):
			plan.Claims = append(plan.Claims, ClaimPlan{Claim: key})
		}
	}
	return plan
}

// releaseDevices names a claim whose devices keep the pod from every node and
// that no one else uses: giving them back may make room. A promised one is not
// given back: its placement is under way.
func (c *cycle) releaseDevices() *types.NamespacedName {
	if c.devices == nil {
		return nil
	}
	for _, claim := range c.devices.having {
		others := slices.ContainsFunc(claim.Status.ReservedFor,
			func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID != c.pod.Obj.UID })
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		if claim.Status.Allocation == nil || others || c.s.devices.promised[key] != nil {
			continue
		}
		for _, planned := range c.devices.plans {
			if slices.Contains(planned.refusal.reasons, "resourceclaim not available on the node") {
				return &key
			}
		}
	}
	return nil
}
