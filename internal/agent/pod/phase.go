package pod

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// setPhase decides the phase. It never goes back: a pod that has been Running
// is not Pending again, and a terminal phase stays. A pod that is ending gets
// its terminal phase only once nothing of it runs.
func (p *planner) setPhase(s *v1.PodStatus, final bool) {
	last := &p.obs.Last
	switch {
	case terminal(last.Phase):
		s.Phase, s.Reason, s.Message = last.Phase, last.Reason, last.Message
		return
	case final:
		s.Phase = p.outcome(s)
		if k := p.end.force; k != nil {
			if k.Phase != "" && (k.Phase != v1.PodFailed || s.Phase != v1.PodSucceeded || p.end.rejected || p.spec.Kill == nil) {
				s.Phase = k.Phase
			}
			s.Reason, s.Message = k.Reason, k.Message
		}
	default:
		s.Phase = p.livePhase(s)
	}
	if last.Phase == v1.PodRunning && s.Phase == v1.PodPending {
		s.Phase = v1.PodRunning
	}
	if s.Phase == last.Phase && s.Reason == "" {
		s.Reason, s.Message = last.Reason, last.Message
	}
}

// outcome is the phase that a pod ends in by itself. A static pod that was
// asked to end has no outcome of its own: it only fails if its containers did.
func (p *planner) outcome(s *v1.PodStatus) v1.PodPhase {
	for _, c := range s.InitContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 && p.containerTypeOf(c.Name) == initContainer {
			return v1.PodFailed
		}
	}
	for _, c := range s.ContainerStatuses {
		if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
			return v1.PodFailed
		}
	}
	return v1.PodSucceeded
}

func (p *planner) containerTypeOf(name string) role {
	if m := p.containerNamed(name); m != nil {
		return m.role
	}
	return regularContainer
}

// livePhase is the phase of a pod that is not over.
func (p *planner) livePhase(s *v1.PodStatus) v1.PodPhase {
	running, stopped, waiting := 0, 0, 0
	for _, c := range s.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			running++
		case c.State.Terminated != nil, c.LastTerminationState.Terminated != nil:
			stopped++
		default:
			waiting++
		}
	}
	pendingInit := false
	for _, c := range s.InitContainerStatuses {
		switch p.containerTypeOf(c.Name) {
		case initContainer:
			t := c.State.Terminated
			pendingInit = pendingInit || t == nil || t.ExitCode != 0
		case sidecarContainer:
			if c.State.Running != nil {
				running++
			}
			up := c.State.Running != nil && c.Started != nil && *c.Started || c.State.Terminated != nil
			pendingInit = pendingInit || !up && running+stopped == 0
			if c.State.Waiting != nil && c.LastTerminationState.Terminated == nil {
				waiting++
			}
		}
	}
	if pendingInit || waiting > 0 || running+stopped == 0 {
		return v1.PodPending
	}
	return v1.PodRunning
}

// readyToStart: containers can be started. The sandbox does not wait for the
// volumes, but containers do; volumes that containers have are there.
func (p *planner) readyToStart() bool {
	if p.cur == nil || p.end != nil && p.obs.Stopped[p.cur.ID] {
		return false
	}
	return p.obs.VolumesReady || slices.ContainsFunc(p.allContainers, func(m *containerState) bool { return m.cur != nil })
}

// conditions computes the conditions that the agent owns, in a fixed order.
func (p *planner) conditions(s *v1.PodStatus) {
	p.set(s, v1.PodReadyToStartContainers, p.readyToStart(), "", "")
	ok, reason, msg := p.initializedCondition(s)
	p.set(s, v1.PodInitialized, ok, reason, msg)
	ready, reason, msg := p.containersReady(s)
	p.set(s, v1.ContainersReady, ready, reason, msg)
	if ready {
		if bad := p.gates(); len(bad) > 0 {
			ready, reason, msg = false, "ReadinessGatesNotReady", strings.Join(bad, ", ")
		}
	}
	p.set(s, v1.PodReady, ready, reason, msg)
	p.set(s, v1.PodScheduled, true, "", "")
	p.restartCondition(s)
	p.resizeConditions(s)
	if p.end != nil && p.end.force != nil && p.end.force.Condition != nil && terminal(s.Phase) {
		c := p.end.force.Condition.DeepCopy()
		p.put(s, *c)
	} else if terminal(s.Phase) {
		for _, c := range p.obs.Last.Conditions {
			if c.Type == v1.DisruptionTarget {
				p.put(s, c)
			}
		}
	}
}

func (p *planner) set(s *v1.PodStatus, t v1.PodConditionType, ok bool, reason, msg string) {
	c := v1.PodCondition{Type: t, Status: v1.ConditionFalse, Reason: reason, Message: msg}
	if ok {
		c.Status = v1.ConditionTrue
	}
	p.put(s, c)
}

// put adds a condition; its transition time moves only when its status does.
func (p *planner) put(s *v1.PodStatus, c v1.PodCondition) {
	c.ObservedGeneration = p.pod.Generation
	c.LastTransitionTime = stamp(p.now)
	for _, old := range p.obs.Last.Conditions {
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	s.Conditions = append(s.Conditions, c)
}

func (p *planner) initializedCondition(s *v1.PodStatus) (ok bool, reason, message string) {
	if s.Phase == v1.PodSucceeded {
		return true, "PodCompleted", ""
	}
	for _, c := range s.ContainerStatuses {
		if c.State.Running != nil || c.LastTerminationState.Terminated != nil || c.State.Terminated != nil &&
			c.State.Terminated.Reason != unknownReason {
			return true, "", ""
		}
	}
	var incomplete []string
	for _, c := range s.InitContainerStatuses {
		done := c.Ready
		if p.containerTypeOf(c.Name) == sidecarContainer {
			done = c.Started != nil && *c.Started
		}
		if !done {
			incomplete = append(incomplete, c.Name)
		}
	}
	if len(incomplete) == 0 {
		return true, "", ""
	}
	return false, "ContainersNotInitialized", "containers with incomplete status: " + list(incomplete)
}

func (p *planner) containersReady(s *v1.PodStatus) (ok bool, reason, message string) {
	switch s.Phase {
	case v1.PodSucceeded:
		return false, "PodCompleted", ""
	case v1.PodFailed:
		return false, "PodFailed", ""
	}
	var unready []string
	for _, c := range s.InitContainerStatuses {
		if p.containerTypeOf(c.Name) == sidecarContainer && !c.Ready {
			unready = append(unready, c.Name)
		}
	}
	// In the order of the spec, which is what the message shows.
	for i := range p.pod.Spec.Containers {
		name := p.pod.Spec.Containers[i].Name
		at := slices.IndexFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.Name == name })
		if at >= 0 && !s.ContainerStatuses[at].Ready {
			unready = append(unready, name)
		}
	}
	if len(unready) > 0 {
		return false, "ContainersNotReady", "containers with unready status: " + list(unready)
	}
	return true, "", ""
}

// gates names the readiness gates that hold the pod back.
func (p *planner) gates() (bad []string) {
	for _, g := range p.pod.Spec.ReadinessGates {
		at := slices.IndexFunc(p.pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == g.ConditionType })
		switch {
		case at < 0:
			bad = append(bad, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType))
		case p.pod.Status.Conditions[at].Status != v1.ConditionTrue:
			bad = append(bad, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType,
				p.pod.Status.Conditions[at].Status))
		}
	}
	return bad
}

func list(names []string) string { return "[" + strings.Join(names, " ") + "]" }
