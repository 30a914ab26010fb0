package pod

import (
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
)

// check looks at a member that may be running and ends it if it must not go
// on; it tells whether something of it is alive.
func (p *planner) check(m *containerState) bool {
	c := m.cur
	if !alive(c) {
		return false
	}
	name := m.c.Name
	probe := p.obs.Probes[c.ID]
	_, hookFailed := p.obs.Failed[actionKey{PostStart, c.ID}]
	kind := "Container"
	if m.role == sidecarContainer {
		kind = "Init container"
	}
	switch {
	case c.State == runtime.Unknown:
		p.stop(c, p.ownGrace(), fmt.Sprintf("Container %s is in unknown state, try killing it before restart", name),
			fact("state", "unknown"))
	case !container.SameDefinition(c.Hash, m.c):
		p.stop(c, p.ownGrace(), fmt.Sprintf("Container %s definition changed, will be restarted", name), fact("definition", "changed"))
	case probe.Failed != "":
		msg := fmt.Sprintf("Container %s failed %s probe, will be restarted", name, probe.Failed)
		if kind != "Container" {
			msg = fmt.Sprintf("%s %s failed %s probe", kind, name, probe.Failed)
		}
		p.stop(c, p.probeGrace(m.c, probe.Failed), msg, fact(probe.Failed+" probe", "failed"), fact("output", probe.Output))
	case hookFailed:
		p.stop(c, p.ownGrace(), "FailedPostStartHook", fact("post-start hook", "failed"))
	}
	return true
}

// run starts a member that is not alive, when its back-off and the collaborators
// allow it.
func (p *planner) run(m *containerState) {
	name := m.c.Name
	c := m.last
	if c == nil {
		if lastRan(&p.obs.Last, name) && !p.vanishedRestarts(m) && !p.startingOver() {
			return
		}
		p.start(m, nil, fact("container", "never started"))
		return
	}
	if c.State == runtime.Created {
		// Made by an agent that died, or its start failed half-way.
		if !p.inFlight(actionKey{Start, name}) {
			p.emit(action{Kind: Remove, Container: name, ID: c.ID}, fact("container", "created but never started"))
		}
		return
	}
	if alive(c) {
		return // still being stopped in an older sandbox
	}
	if p.inFlight(actionKey{Start, name}) {
		return // its back-off is of the time after this start
	}
	if m.cur == nil && m.role == initContainer {
		p.start(m, nil, fact("sandbox", "new")) // init containers run once per sandbox
		return
	}
	if !restartable(p.pod, m, c) && container.SameDefinition(c.Hash, m.c) {
		return
	}
	at, entry := p.restartAt(m, c)
	if p.now.Before(at) {
		p.wakeAt(at)
		p.crashWait(m, at.Sub(c.FinishedAt))
		return
	}
	ended := "ended"
	if p.obs.endedUnseen(p.idOf(c), c) {
		ended = "ended while no agent was looking"
	}
	p.start(m, &entry, fact("container", ended), fact("exit code", strconv.Itoa(int(c.ExitCode))),
		fact("restarts", strconv.Itoa(int(c.Attempt))))
}

// vanishedRestarts: a container that the status says has run, and of which the
// runtime knows nothing, is started again if its policy would restart it after
// a failure.
func (p *planner) vanishedRestarts(m *containerState) bool {
	return restartable(p.pod, m, &runtime.Container{State: runtime.Exited, ExitCode: unknownExit})
}

func (p *planner) crashWait(m *containerState, d time.Duration) {
	pod := p.pod
	id := fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
	p.wait[m.c.Name] = &v1.ContainerStateWaiting{
		Reason:  "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", d.Round(time.Second), m.c.Name, id),
	}
	p.plan.Events = append(p.plan.Events, event{
		Warning: true, Reason: "BackOff", Container: m.c.Name,
		Message: fmt.Sprintf("Back-off restarting failed container %s in pod %s", m.c.Name, id),
		Key:     fmt.Sprintf("backoff/%s/%d", m.c.Name, m.last.Attempt),
	})
}

// start gives out the start of a container once image, volumes and sandbox are
// at hand.
func (p *planner) start(m *containerState, entry *backoff, because ...journal.Fact) {
	name := m.c.Name
	if f, ok := p.obs.Failed[actionKey{Start, name}]; ok {
		p.wait[name] = &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	}
	if p.cur == nil || !p.obs.VolumesReady || !p.pull(m) {
		return
	}
	p.emit(action{Kind: Start, Container: name, Attempt: p.attempt(m), Backoff: entry, image: p.obs.Images[name].Ref}, because...)
}

// attempt is the restart count of the next instance.
func (p *planner) attempt(m *containerState) uint32 {
	if m.last != nil {
		return m.last.Attempt + 1
	}
	next := uint32(0)
	if logged, ok := p.obs.Logged[m.c.Name]; ok {
		next = logged + 1
	}
	switch s := lastStatus(&p.obs.Last, m.c.Name); {
	case s == nil:
		return next
	case s.ContainerID != "":
		return max(next, uint32(s.RestartCount)+1)
	default:
		return max(next, uint32(s.RestartCount)) // already counted when it was lost
	}
}
