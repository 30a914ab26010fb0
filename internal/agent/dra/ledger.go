package dra

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// device is one device of a claim, as its driver prepared it. Field names here
// and below are those of the kubelet's state file.
type device struct {
	PoolName     string
	DeviceName   string
	ShareID      *types.UID `json:",omitempty"`
	RequestNames []string
	CDIDeviceIDs []string
}

// driverState is what one driver prepared for a claim.
type driverState struct {
	Devices []device
}

// claimInfo is one claim in use on this node.
type claimInfo struct {
	ClaimUID  types.UID
	ClaimName string
	Namespace string
	// PodUIDs use the claim.
	PodUIDs map[string]struct{}
	// driverState has an entry per driver of the allocation.
	DriverState map[string]driverState

	// prepared: every driver has done its part. Not kept: preparing again is
	// harmless, and after a restart it is the way to find out.
	prepared bool
}

// ledger knows the claims in use by UID. It is not safe for concurrent use.
type ledger map[types.UID]*claimInfo

// use notes that a pod uses a claim, and whether that is news.
func (l ledger) use(uid types.UID, namespace, name string, drivers []string, pod types.UID) (info *claimInfo, changed bool) {
	info = l[uid]
	if info == nil {
		info = &claimInfo{ClaimUID: uid, ClaimName: name, Namespace: namespace, PodUIDs: map[string]struct{}{},
			DriverState: map[string]driverState{}}
		l[uid] = info
		changed = true
	}
	if _, ok := info.PodUIDs[string(pod)]; !ok {
		info.PodUIDs[string(pod)] = struct{}{}
		changed = true
	}
	for _, driver := range drivers {
		if _, ok := info.DriverState[driver]; !ok {
			info.DriverState[driver] = driverState{}
			info.prepared, changed = false, true
		}
	}
	return info, changed
}

// leave takes a pod from the claims it uses and returns those that no one uses
// any more, sorted. They stay until they are dropped.
func (l ledger) leave(pod types.UID) (unused []*claimInfo) {
	for _, uid := range slices.Sorted(maps.Keys(l)) {
		info := l[uid]
		if _, ok := info.PodUIDs[string(pod)]; !ok {
			continue
		}
		if len(info.PodUIDs) > 1 {
			delete(info.PodUIDs, string(pod))
			continue
		}
		unused = append(unused, info)
	}
	return unused
}

// pods are all that use a claim.
func (l ledger) pods() []types.UID {
	seen := map[types.UID]bool{}
	for _, info := range l {
		for pod := range info.PodUIDs {
			seen[types.UID(pod)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// byName finds a claim that a pod uses.
func (l ledger) byName(pod *v1.Pod, claim string) *claimInfo {
	for _, info := range l {
		if _, uses := info.PodUIDs[string(pod.UID)]; uses && info.Namespace == pod.Namespace && info.ClaimName == claim {
			return info
		}
	}
	return nil
}

// ids are the CDI names of a claim's devices for one request of it ("": all).
func (c *claimInfo) ids(request string) (out []string) {
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, d := range c.DriverState[driver].Devices {
			if d.serves(request) {
				out = append(out, d.CDIDeviceIDs...)
			}
		}
	}
	return out
}

// serves tells whether a device is for a request. Names of requests may have a
// part that tells which alternative was taken; a device that names none is for
// all.
func (d device) serves(request string) bool {
	if request == "" || len(d.RequestNames) == 0 {
		return true
	}
	return slices.ContainsFunc(d.RequestNames, func(name string) bool {
		base, _, _ := strings.Cut(name, "/")
		return base == request
	})
}

// uses is one claim of a pod that a container sees, or one request of it, and
// what the pod's status calls it.
type uses struct{ claim, request, status string }

// usedBy lists what a container uses, by the claims' own names.
func usedBy(pod *v1.Pod, c *v1.Container) (out []uses) {
	for _, ref := range c.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			if pod.Spec.ResourceClaims[i].Name != ref.Name {
				continue
			}
			if name, ok := claimName(pod, &pod.Spec.ResourceClaims[i]); ok && name != "" {
				status := "claim:" + ref.Name
				if ref.Request != "" {
					status += "/" + ref.Request
				}
				out = append(out, uses{name, ref.Request, status})
			}
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, m := range extended.RequestMappings {
			if m.ContainerName == c.Name {
				out = append(out, uses{extended.ResourceClaimName, m.RequestName, "claim:" + extended.ResourceClaimName + "/" +
					m.RequestName})
			}
		}
	}
	return out
}

// claimName is the ResourceClaim behind an entry of a pod's spec: "" when none
// is needed, not ok while one made from a template is not known yet.
func claimName(pod *v1.Pod, ref *v1.PodResourceClaim) (name string, ok bool) {
	if ref.ResourceClaimName != nil {
		return *ref.ResourceClaimName, true
	}
	for _, st := range pod.Status.ResourceClaimStatuses {
		if st.Name == ref.Name {
			if st.ResourceClaimName == nil {
				return "", true
			}
			return *st.ResourceClaimName, true
		}
	}
	return "", false
}
