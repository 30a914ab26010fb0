package pod

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// What the status shows for a container that no one can find.
const (
	unknownExit   = 137
	unknownReason = "ContainerStatusUnknown"
)

// lastStatus finds a container's status by name, or nil.
func lastStatus(s *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// stamp is a time as the API keeps it: whole seconds.
func stamp(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// lastRan tells whether the status says that a container has run.
func lastRan(s *v1.PodStatus, name string) bool {
	c := lastStatus(s, name)
	return c != nil && c.ContainerID != ""
}

// status computes the pod's whole status. What was reported of a pod before and cannot
// be known again (start time, transition times, a lost container) is taken from
// the last status.
func (p *planner) status() v1.PodStatus {
	last := &p.obs.Last
	s := v1.PodStatus{
		ObservedGeneration: max(p.pod.Generation, last.ObservedGeneration),
		QOSClass:           qos.GetPodQOS(p.pod),
		StartTime:          last.StartTime,
		NominatedNodeName:  last.NominatedNodeName,
	}
	if s.StartTime == nil && !p.spec.Orphan {
		t := stamp(p.now)
		s.StartTime = &t
	}
	p.addresses(&s)
	p.wholeResources(&s)
	final := p.end != nil && p.quiet()
	p.plan.Ended = final
	for _, m := range p.allContainers {
		if p.end != nil && p.end.rejected {
			break // nothing of it was ever meant to run here
		}
		c := p.containerStatus(m, final)
		switch m.role {
		case initContainer, sidecarContainer:
			s.InitContainerStatuses = append(s.InitContainerStatuses, c)
		case regularContainer:
			s.ContainerStatuses = append(s.ContainerStatuses, c)
		case ephemeralContainer:
			s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, c)
		}
	}
	slices.SortFunc(s.ContainerStatuses, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	p.setPhase(&s, final && !p.unmounting())
	p.conditions(&s)
	return s
}

// unmounting: a deleted pod whose volumes are about to go. Its end is told when
// they are gone, so that anyone who waits for it finds nothing left; volumes that
// cannot be unmounted hold up its deletion, not its end.
func (p *planner) unmounting() bool {
	if p.pod.DeletionTimestamp == nil || p.spec.Static || p.spec.Orphan || p.spec.Removed || p.obs.Unmounted {
		return false
	}
	_, failed := p.obs.Failed[actionKey{Kind: Unmount}]
	return !failed
}

// addresses fills in the IPs of node and pod.
func (p *planner) addresses(s *v1.PodStatus) {
	for _, ip := range p.obs.Node.IPs {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if len(s.HostIPs) == 0 {
		s.HostIPs = p.obs.Last.HostIPs // the node is not known yet
	}
	var ips []string
	switch {
	case p.pod.Spec.HostNetwork && len(p.obs.Last.PodIPs) > 0:
		for _, ip := range p.obs.Last.PodIPs {
			ips = append(ips, ip.IP)
		}
	case p.pod.Spec.HostNetwork:
		ips = p.obs.Node.IPs
	case p.cur != nil:
		ips = p.cur.IPs
	case p.obs.Runtime != nil && len(p.obs.Runtime.Sandboxes) > 0:
		ips = p.obs.Runtime.Sandboxes[0].IPs
	}
	if len(ips) == 0 && p.end != nil {
		// A pod that ended keeps the address it had.
		s.PodIP, s.PodIPs = p.obs.Last.PodIP, p.obs.Last.PodIPs
	}
	for _, ip := range ips[:min(len(ips), 2)] {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(s.HostIPs) > 0 {
		s.HostIP = s.HostIPs[0].IP
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// wholeResources is what a pod with resources of its own was promised and has.
func (p *planner) wholeResources(s *v1.PodStatus) {
	own := p.pod.Spec.Resources
	if own == nil || p.end != nil && p.end.rejected {
		return
	}
	s.AllocatedResources = helpers.PodRequests(p.pod, helpers.PodResourcesOptions{})
	s.Resources = own
	if p.obs.Allocation.Actuating && p.obs.Last.Resources != nil {
		s.Resources = p.obs.Last.Resources // what is promised is not enforced yet
	}
}

// containerStatus describes one container.
func (p *planner) containerStatus(m *containerState, final bool) v1.ContainerStatus {
	last := lastStatus(&p.obs.Last, m.c.Name)
	s := v1.ContainerStatus{Name: m.c.Name, Image: m.c.Image}
	if m.role != ephemeralContainer {
		s.Started = ptr.To(false)
	}
	if last != nil {
		s.RestartCount, s.LastTerminationState = last.RestartCount, last.LastTerminationState
	}
	switch {
	case m.last == nil && last != nil && last.ContainerID != "":
		p.lostContainer(m, &s, last, final)
	case m.last == nil || m.last.State == runtime.Created && p.previous(m.last) == nil:
		s.State.Waiting = p.waiting(m)
		if final && (m.role == regularContainer || m.role == sidecarContainer) && p.initDone() {
			s.State = unknownState("The container could not be located when the pod was terminated")
		}
	default:
		p.knownContainer(m, &s, final)
	}
	p.shape(m, &s)
	return s
}

func unknownState(message string) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		ExitCode: unknownExit, Reason: unknownReason, Message: message,
	}}
}

// lostContainer describes a container that the status has seen and the runtime
// does not hold.
func (p *planner) lostContainer(m *containerState, s *v1.ContainerStatus, last *v1.ContainerStatus, final bool) {
	s.Image, s.ImageID, s.ContainerID = last.Image, last.ImageID, last.ContainerID
	switch {
	case p.startingOver():
		removedStatus(s, last, p.waiting(m))
		return
	case last.State.Terminated != nil:
		s.State = last.State
		s.Ready = m.role == initContainer && last.State.Terminated.ExitCode == 0
		return
	case m.role == initContainer && p.anyMainRan():
		s.State.Terminated = &v1.ContainerStateTerminated{
			Reason: "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited " +
				"normally",
			ContainerID: last.ContainerID,
		}
		s.Ready = true
		return
	}
	if last.State.Running != nil {
		s.LastTerminationState = unknownState(
			"The container could not be located when the pod was deleted.  The container used to be Running")
		if p.pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	if final || m.role == regularContainer && p.finished(m) {
		s.State = unknownState("The container could not be located when the pod was terminated")
		return
	}
	s.ContainerID = "" // the next instance is a new one
	s.State.Waiting = p.waiting(m)
}

// previous is the instance before the given one, or nil.
func (p *planner) previous(c *runtime.Container) *runtime.Container {
	for i, have := range p.held() {
		if have.ID == c.ID {
			for _, older := range p.held()[i+1:] {
				if older.Name == c.Name {
					return older
				}
			}
		}
	}
	return nil
}

// knownContainer describes a container by what the runtime holds of it.
func (p *planner) knownContainer(m *containerState, s *v1.ContainerStatus, final bool) {
	c := m.last
	older := p.previous(c)
	if c.State == runtime.Created {
		c, older = older, p.previous(older) // it counts once it runs
	}
	s.ContainerID, s.ImageID, s.RestartCount = p.idOf(c), c.ImageRef, int32(c.Attempt)
	if c.Image != "" {
		s.Image = c.Image
	}
	if older != nil && exited(older) {
		s.LastTerminationState = v1.ContainerState{Terminated: p.terminated(older)}
	}
	switch {
	case c.State == runtime.Running:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: stamp(c.StartedAt)}
		if c == m.cur {
			probe := p.probe(m)
			s.Ready = probe.Ready && (m.role == regularContainer || m.role == sidecarContainer)
			if s.Started != nil {
				s.Started = &probe.Started
			}
		}
		s.User = user(c)
	case c.State == runtime.Exited:
		s.State.Terminated = p.terminated(c)
		s.Ready = m.role == initContainer && m.succeeded(c)
		if w := p.wait[m.c.Name]; w != nil && !final && p.end == nil {
			s.LastTerminationState, s.State = s.State, v1.ContainerState{Waiting: w}
		}
	case final:
		s.State = unknownState("The container could not be located when the pod was terminated")
	default:
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
		if old := lastStatus(&p.obs.Last, m.c.Name); old != nil && old.State.Running != nil {
			s.State = old.State // the runtime lost track of it: it is being stopped
		}
	}
}

func user(c *runtime.Container) *v1.ContainerUser {
	l := c.User.GetLinux()
	if l == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: l.GetUid(), GID: l.GetGid(), SupplementalGroups: l.GetSupplementalGroups()}}
}

func (p *planner) terminated(c *runtime.Container) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message, ContainerID: p.idOf(c),
		StartedAt: stamp(c.StartedAt), FinishedAt: stamp(c.FinishedAt),
	}
	if msg := p.obs.Messages[c.ID]; msg != "" {
		t.Message = msg
	}
	return t
}

// waiting says why a container that has not run yet does not run.
func (p *planner) waiting(m *containerState) *v1.ContainerStateWaiting {
	// A container's own trouble shows once its turn has come.
	if w := p.wait[m.c.Name]; w != nil && p.initDoneBefore(m) {
		return w
	}
	if len(p.pod.Spec.InitContainers) > 0 && m.role != ephemeralContainer {
		return &v1.ContainerStateWaiting{Reason: "PodInitializing"}
	}
	return &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
}

// initDone: every init container has done its part.
func (p *planner) initDone() bool { return p.initDoneBefore(nil) }

// initDoneBefore: those init containers have done their part that come before a
// member, which is all for one that is none itself.
func (p *planner) initDoneBefore(until *containerState) bool {
	for _, m := range p.allContainers {
		if m == until || until != nil && until.role == ephemeralContainer {
			return true
		}
		switch m.role {
		case initContainer:
			if !(exited(m.cur) && m.succeeded(m.cur)) && !p.initialized() {
				return false
			}
		case sidecarContainer:
			if !p.initialized() && !(alive(m.cur) && p.started(m)) {
				return false
			}
		}
	}
	return true
}

// shape adds what the spec says about mounts and resources.
func (p *planner) shape(m *containerState, s *v1.ContainerStatus) {
	for _, vm := range m.c.VolumeMounts {
		st := v1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
		if vm.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if r := vm.RecursiveReadOnly; r != nil && *r != v1.RecursiveReadOnlyDisabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			st.RecursiveReadOnly = &mode
		}
		s.VolumeMounts = append(s.VolumeMounts, st)
	}
	if m.role == ephemeralContainer {
		return
	}
	s.AllocatedResourcesStatus = p.obs.Devices[m.c.Name]
	if len(m.c.Resources.Requests) > 0 {
		s.AllocatedResources = m.c.Resources.Requests
	}
	if old := lastStatus(&p.obs.Last, m.c.Name); p.obs.Allocation.Actuating && old != nil && old.Resources != nil {
		s.Resources = old.Resources // what is promised is not enforced yet
		return
	}
	s.Resources = &v1.ResourceRequirements{Limits: m.c.Resources.Limits, Requests: m.c.Resources.Requests, Claims: m.c.Resources.Claims}
	if s.State.Running != nil && m.cur != nil && m.cur.State == runtime.Running {
		p.actual(m, s)
	}
}

// actual replaces limits and requests by what the runtime enforces.
func (p *planner) actual(m *containerState, s *v1.ContainerStatus) {
	l := m.cur.Resources.GetLinux()
	if l == nil || s.Resources == nil {
		return
	}
	if want, ok := s.Resources.Limits[v1.ResourceMemory]; ok && l.GetMemoryLimitInBytes() > 0 && l.GetMemoryLimitInBytes() != want.Value() {
		s.Resources = s.Resources.DeepCopy()
		s.Resources.Limits[v1.ResourceMemory] = *resource.NewQuantity(l.GetMemoryLimitInBytes(), resource.BinarySI)
	}
}
