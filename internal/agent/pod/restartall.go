package pod

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// What the status says of containers that start over because one of them
// asked for it.
const (
	restartingReason    = "RestartingAllContainers"
	restartingMessage   = "The container is removed because RestartAllContainers in place"
	restartAllCondition = "RestartAllContainersStarted"
	restartAllMessage   = "container exited with restart policy rule"
)

// askers are the containers whose exit asks for all of the pod's containers to
// start over in place.
func (p *planner) askers() (out []*containerState) {
	for _, m := range p.allContainers {
		if (m.role == regularContainer || m.role == initContainer || m.role == sidecarContainer) && exited(m.cur) && m.cur == m.last &&
			ruleFor(m.c, m.cur.ExitCode) == v1.ContainerRestartRuleActionRestartAllContainers {
			out = append(out, m)
		}
	}
	return out
}

// mayRestartAll: some container of the pod has such a rule.
func (p *planner) mayRestartAll() bool {
	for _, m := range p.allContainers {
		for _, r := range m.c.RestartPolicyRules {
			if r.Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// startingOver: the containers were removed to start over and have not all
// started again. The condition in the status is the memory of it.
func (p *planner) startingOver() bool {
	if p.end != nil || !p.mayRestartAll() {
		return false
	}
	on := p.saidRestarting()
	if len(p.askers()) > 0 {
		return on || p.restartingNow
	}
	if !on {
		return false
	}
	for _, m := range p.allContainers {
		if m.role == regularContainer && m.last == nil {
			return true
		}
	}
	return false
}

// saidRestarting: the status says that all containers start over.
func (p *planner) saidRestarting() bool {
	for _, c := range p.obs.Last.Conditions {
		if c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue {
			return true
		}
	}
	return false
}

// clearing: containers are already being removed to start over, so there is
// no waiting any more, whatever the back-off says to another restart.
func (p *planner) clearing(askers []*containerState) bool {
	for _, m := range askers {
		if p.inFlight(actionKey{Remove, m.cur.ID}) {
			return true
		}
	}
	for _, m := range p.allContainers {
		if m.role != ephemeralContainer && m.last == nil && p.saidRestarting() {
			return true
		}
	}
	return false
}

// restartAll takes every container away but the sandbox, those that asked for
// it last: as long as one of them is there, an agent that dies on the way
// knows what it was doing. Logs stay. Then the pod starts over.
func (p *planner) restartAll() bool {
	askers := p.askers()
	if len(askers) == 0 || p.cur == nil {
		return true
	}
	asked := map[string]*containerState{}
	for _, m := range askers {
		at, _ := p.restartAt(m, m.cur)
		if p.now.Before(at) && !p.clearing(askers) {
			return true // run shows the back-off and wakes
		}
		asked[m.cur.ID] = m
	}
	p.restartingNow = true
	up, others := false, false
	for _, c := range p.held() {
		m := p.containerNamed(c.Name)
		if m == nil || m.role == ephemeralContainer || asked[c.ID] != nil {
			continue
		}
		others = true
		if alive(c) {
			up = true
			p.stop(c, 0, "Stopping container "+c.Name, fact("restart of all containers", "asked for by "+askers[0].c.Name))
		}
	}
	if up || p.busy(Start) {
		return false
	}
	for _, c := range p.held() {
		m := p.containerNamed(c.Name)
		if m == nil || m.role == ephemeralContainer {
			continue
		}
		a := action{Kind: Remove, Container: c.Name, ID: c.ID, KeepLogs: true}
		if asked[c.ID] != nil {
			if others {
				continue
			}
			_, entry := p.restartAt(m, c)
			a.Backoff = &entry
		}
		p.emit(a, fact("restart of all containers", "asked for by "+askers[0].c.Name),
			fact("exit code", strconv.Itoa(int(askers[0].cur.ExitCode))))
	}
	return false
}

// removedStatus describes a container that was removed to start over.
func removedStatus(s *v1.ContainerStatus, last *v1.ContainerStatus, w *v1.ContainerStateWaiting) {
	if t := last.State.Terminated; t != nil {
		s.LastTerminationState = last.State
	} else {
		s.LastTerminationState = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode: unknownExit, Reason: restartingReason, Message: restartingMessage, ContainerID: last.ContainerID,
		}}
	}
	s.RestartCount++
	s.ContainerID = ""
	s.State = v1.ContainerState{Waiting: w}
}

// restartCondition is there for pods that have such a rule only.
func (p *planner) restartCondition(s *v1.PodStatus) {
	if !p.mayRestartAll() {
		return
	}
	if p.startingOver() {
		p.set(s, v1.AllContainersRestarting, true, restartAllCondition, restartAllMessage)
		return
	}
	for _, c := range p.obs.Last.Conditions {
		if c.Type == v1.AllContainersRestarting {
			p.set(s, v1.AllContainersRestarting, false, "", "")
		}
	}
}
