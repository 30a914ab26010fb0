package node

import (
	"net/netip"
	"runtime"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// runtimeTimeout is how long the runtime may leave Status unanswered
	// before the node stops calling itself ready.
	runtimeTimeout = 30 * time.Second
	namesPerImage  = 5
)

// Settings are the parts of status that configuration decides.
type Settings struct {
	Identity  Identity
	Limits    Limits
	Reserved  Reservation
	Port      int32
	Version   string // Kubernetes version this agent speaks, "v1.37.2"
	MaxImages int    // -1 is all
	// Features are the declared features, sorted.
	Features []string
}

// RuntimeView is the last that was heard from the container runtime.
type RuntimeView struct {
	// Asked is when the first question was sent; zero before that.
	Asked time.Time
	// LastAnswer is when the last answer arrived; zero if none ever did.
	LastAnswer time.Time
	Status     *runtimeapi.StatusResponse
	Version    *runtimeapi.VersionResponse
	// Err is the error of the last question, nil if it was answered.
	Err error
}

// Inputs are all facts a status follows from. Nil pointers are facts not
// gathered yet.
type Inputs struct {
	Host *HostInfo
	// HostErr tells why Host is nil.
	HostErr error
	RootFS  *FS
	// RootFSErr tells why RootFS is nil or old.
	RootFSErr error
	Runtime   RuntimeView
	// Images is nil until the runtime listed them once.
	Images    []v1.ContainerImage
	Addresses []v1.NodeAddress
	// AddressErr tells why Addresses is empty.
	AddressErr        error
	Pressure          Pressure
	DeviceCapacity    v1.ResourceList
	DeviceAllocatable v1.ResourceList
	VolumesInUse      []v1.UniqueVolumeName
	VolumesInUseKnown bool
	ShuttingDown      bool
	// OtherCauses are reasons of other parts not to be ready, in their words.
	OtherCauses []string
}

// status computes the status to report from the previous one and the facts.
// Parts the agent does not own (attached volumes, foreign conditions, cloud
// addresses) are carried over as they are.
func status(previous v1.NodeStatus, set Settings, in Inputs, now time.Time) (v1.NodeStatus, []transition) {
	status := *previous.DeepCopy()
	var transitions []transition

	if addresses := reportAddresses(set.Identity, previous, in); len(addresses) > 0 {
		status.Addresses = addresses
	}
	if in.Host != nil {
		if previous.NodeInfo.BootID != "" && in.Host.BootID != "" && previous.NodeInfo.BootID != in.Host.BootID {
			transitions = append(transitions, transition{Type: v1.EventTypeWarning, Reason: "Rebooted",
				Text: "Node " + set.Identity.Name + " has been rebooted, boot id: " + in.Host.BootID})
		}
		status.NodeInfo.MachineID = in.Host.MachineID
		status.NodeInfo.SystemUUID = in.Host.SystemUUID
		status.NodeInfo.BootID = in.Host.BootID
		status.NodeInfo.KernelVersion = in.Host.Kernel
		status.NodeInfo.OSImage = in.Host.OSImage
		status.NodeInfo.Swap = nil
		if in.Host.SwapBytes > 0 {
			swap := in.Host.SwapBytes
			status.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &swap}
		}
	}
	capacity := Capacity(in.Host, in.RootFS, set.Limits, in.DeviceCapacity)
	if in.RootFS == nil {
		keep(capacity, previous.Capacity, v1.ResourceEphemeralStorage)
	}
	allocatable := Allocatable(capacity, set.Reserved, in.DeviceAllocatable)
	mergeCapacity(previous, capacity, allocatable)
	status.Capacity, status.Allocatable = capacity, allocatable

	status.NodeInfo.KubeletVersion = set.Version
	status.NodeInfo.KubeProxyVersion = ""
	status.NodeInfo.OperatingSystem = runtime.GOOS
	status.NodeInfo.Architecture = runtime.GOARCH
	status.NodeInfo.ContainerRuntimeVersion = runtimeVersion(in.Runtime, status.NodeInfo.ContainerRuntimeVersion)
	status.DaemonEndpoints.KubeletEndpoint.Port = set.Port
	if in.Images != nil {
		status.Images = in.Images
	}
	if in.Runtime.Status != nil {
		status.RuntimeHandlers = runtimeHandlers(in.Runtime.Status.RuntimeHandlers)
		status.Features = runtimeFeatures(in.Runtime.Status.Features)
	}
	if in.VolumesInUseKnown {
		status.VolumesInUse = in.VolumesInUse
	}
	status.DeclaredFeatures = set.Features

	conditions, changed := conditions(set.Identity.Name, previous.Conditions, in.Pressure, notReady(in, capacity, now), now)
	status.Conditions = mergeConditions(previous.Conditions, conditions)
	return status, append(transitions, changed...)
}

// notReady lists every cause for the node not to be ready, in a fixed order.
func notReady(in Inputs, capacity v1.ResourceList, now time.Time) []string {
	var causes []string
	view := in.Runtime
	switch {
	case view.LastAnswer.IsZero() && (view.Asked.IsZero() || now.Sub(view.Asked) < runtimeTimeout):
		causes = append(causes, "container runtime status check may not have completed yet")
	case view.LastAnswer.IsZero():
		causes = append(causes, "container runtime is down: no answer to Status since "+stampText(view.Asked)+errText(view.Err))
	case now.Sub(view.LastAnswer) >= runtimeTimeout:
		causes = append(causes, "container runtime is down: no answer to Status since "+stampText(view.LastAnswer)+errText(view.Err))
	}
	causes = append(causes, runtimeConditions(view.Status)...)
	causes = append(causes, in.OtherCauses...)
	if in.ShuttingDown {
		causes = append(causes, "node is shutting down")
	}
	return append(causes, missingCapacity(in, capacity)...)
}

func runtimeConditions(status *runtimeapi.StatusResponse) []string {
	if status == nil || status.Status == nil {
		return []string{"network state unknown"}
	}
	var causes []string
	network := false
	for _, condition := range status.Status.Conditions {
		prefix := ""
		switch condition.Type {
		case runtimeapi.RuntimeReady:
			prefix = "container runtime not ready: "
		case runtimeapi.NetworkReady:
			prefix, network = "container runtime network not ready: ", true
		default:
			continue
		}
		if !condition.Status {
			causes = append(causes, prefix+condition.Type+"=false reason:"+condition.Reason+" message:"+condition.Message)
		}
	}
	if !network {
		causes = append(causes, "network state unknown")
	}
	return causes
}

func missingCapacity(in Inputs, capacity v1.ResourceList) []string {
	var missing []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		quantity, ok := capacity[name]
		if !ok || (in.Host == nil && (name == v1.ResourceCPU || name == v1.ResourceMemory) && quantity.IsZero()) {
			missing = append(missing, string(name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	text := "missing node capacity for resources: " + strings.Join(missing, ", ")
	for _, err := range []error{in.HostErr, in.RootFSErr} {
		if err != nil {
			text += " (" + err.Error() + ")"
		}
	}
	return []string{text}
}

func stampText(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func errText(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

func keep(into, from v1.ResourceList, name v1.ResourceName) {
	if quantity, ok := from[name]; ok {
		into[name] = quantity.DeepCopy()
	}
}

func runtimeVersion(view RuntimeView, previous string) string {
	switch {
	case view.Version != nil:
		return view.Version.RuntimeName + "://" + view.Version.RuntimeVersion
	case previous != "":
		return previous
	}
	return "Unknown"
}

func runtimeHandlers(handlers []*runtimeapi.RuntimeHandler) []v1.NodeRuntimeHandler {
	out := make([]v1.NodeRuntimeHandler, 0, len(handlers))
	for _, handler := range handlers {
		entry := v1.NodeRuntimeHandler{Name: handler.Name}
		if features := handler.Features; features != nil {
			readOnly, userns := features.RecursiveReadOnlyMounts, features.UserNamespaces
			entry.Features = &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &userns}
		}
		out = append(out, entry)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func runtimeFeatures(features *runtimeapi.RuntimeFeatures) *v1.NodeFeatures {
	if features == nil {
		return nil
	}
	groups := features.SupplementalGroupsPolicy
	return &v1.NodeFeatures{SupplementalGroupsPolicy: &groups}
}

// images turns the runtime's list into what the status shows: the biggest
// first, at most limit of them (-1 is all), at most five names each, digests
// before tags. Never nil.
func images(list []*runtimeapi.Image, limit int) []v1.ContainerImage {
	sorted := append([]*runtimeapi.Image(nil), list...)
	sort.SliceStable(sorted, func(i, j int) bool {
		if sorted[i].Size != sorted[j].Size {
			return sorted[i].Size > sorted[j].Size
		}
		return sorted[i].Id < sorted[j].Id
	})
	if limit >= 0 && len(sorted) > limit {
		sorted = sorted[:limit]
	}
	out := make([]v1.ContainerImage, 0, len(sorted))
	for _, image := range sorted {
		names := append(append([]string(nil), image.RepoDigests...), image.RepoTags...)
		if len(names) > namesPerImage {
			names = names[:namesPerImage]
		}
		out = append(out, v1.ContainerImage{Names: names, SizeBytes: int64(image.Size)})
	}
	return out
}

// reportAddresses decides which addresses to report; none means that those
// already in the status stay.
func reportAddresses(id Identity, previous v1.NodeStatus, in Inputs) []v1.NodeAddress {
	hostname := v1.NodeAddress{Type: v1.NodeHostName, Address: id.Name}
	if id.ExternalCloud {
		if len(previous.Addresses) > 0 {
			return nil // the cloud controller's
		}
		if len(id.NodeIPs) == 0 {
			return []v1.NodeAddress{hostname}
		}
	}
	if len(in.Addresses) == 0 {
		return nil
	}
	return in.Addresses
}

// nodeAddresses spells the chosen addresses as the status shows them.
func nodeAddresses(name string, ips []netip.Addr) []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range ips {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip.String()})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: name})
}

// mergeConditions replaces the conditions the agent owns in place and appends
// those that were not there.
func mergeConditions(previous, ours []v1.NodeCondition) []v1.NodeCondition {
	out := append([]v1.NodeCondition(nil), previous...)
	for _, condition := range ours {
		if found := findCondition(out, condition.Type); found != nil {
			*found = condition
		} else {
			out = append(out, condition)
		}
	}
	return out
}

// change grades how much a new status differs from the posted one.
type change int

const (
	// NoChange: at most heartbeat times differ.
	NoChange change = iota
	// SlowChange: only the image list differs, which may wait.
	SlowChange
	// UrgentChange: something others act upon differs.
	UrgentChange
)

// compare grades the difference, ignoring heartbeat times and the order of
// conditions.
func compare(posted, computed v1.NodeStatus) change {
	a, b := withoutHeartbeats(posted), withoutHeartbeats(computed)
	imagesDiffer := !equality.Semantic.DeepEqual(a.Images, b.Images)
	a.Images, b.Images = nil, nil
	switch {
	case !equality.Semantic.DeepEqual(a, b):
		return UrgentChange
	case imagesDiffer:
		return SlowChange
	}
	return NoChange
}

func withoutHeartbeats(status v1.NodeStatus) v1.NodeStatus {
	out := status
	out.Conditions = append([]v1.NodeCondition(nil), status.Conditions...)
	for i := range out.Conditions {
		out.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	sort.Slice(out.Conditions, func(i, j int) bool { return out.Conditions[i].Type < out.Conditions[j].Type })
	return out
}
