package pod

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
)

// defaultGrace is what a pod gets that names no grace of its own.
const defaultGrace = 30

// deadlineReason is how a pod ends that ran longer than it may.
const deadlineReason = "DeadlineExceeded"

// ending is why and how a pod ends.
type ending struct {
	grace int64
	why   string
	// force, when set, is the phase, reason and message the pod ends with.
	force *Kill
	// rejected: nothing of the pod ever ran.
	rejected bool
}

// ending tells whether the pod is on its way out. Every cause is lasting, so a
// pod that is ending stays so, also across a restart of the agent.
func (p *planner) ending() *ending {
	own := p.ownGrace()
	e := &ending{grace: own}
	// Strongest claim on the final status first.
	switch {
	case p.obs.Rejected != nil:
		e.why, e.rejected = "rejected by the node", true
		e.force = &Kill{Phase: v1.PodFailed, Reason: p.obs.Rejected.Reason, Message: "Pod was rejected: " + p.obs.Rejected.Message}
	case p.spec.Kill != nil:
		e.why, e.force = "killed by the node", p.spec.Kill
		if g := p.spec.Kill.Grace; g != nil {
			e.grace = min(e.grace, *g)
		}
	case terminal(p.obs.Last.Phase):
		e.why = "already " + string(p.obs.Last.Phase)
	case p.overDeadline():
		e.why = "over its active deadline"
		e.force = &Kill{Phase: v1.PodFailed, Reason: deadlineReason,
			Message: "Pod was active on the node longer than the specified deadline"}
	case p.completed():
		e.why = "all containers ended"
	}
	switch {
	case p.spec.Orphan:
		e.why, e.grace = "no source has it", 1
	case p.pod.DeletionTimestamp != nil:
		e.why = "deleted"
		if g := p.pod.DeletionGracePeriodSeconds; g != nil {
			e.grace = min(e.grace, *g)
			if p.spec.Kill == nil {
				e.grace = *g
			}
		}
	case p.spec.Removed:
		e.why = "gone from its source"
	}
	if e.why == "" {
		return nil
	}
	if p.pod.DeletionTimestamp == nil || e.grace > 0 {
		e.grace = max(e.grace, 1)
	}
	return e
}

// completed: no container of the pod will ever run again by itself. Sidecars do
// not count, they go with the rest.
func (p *planner) completed() bool {
	mains := false
	for _, m := range p.allContainers {
		if m.role == regularContainer {
			mains = true
		}
	}
	if !mains || p.busy(Start) {
		return false
	}
	for _, m := range p.allContainers {
		failed := m.cur // in this sandbox, which may not be the first
		if !p.anyMainRan() {
			failed = m.last
		}
		if m.role == initContainer && !p.initialized() && exited(failed) && !m.succeeded(failed) && !restartable(p.pod, m, failed) {
			return true
		}
	}
	if p.startingOver() {
		return false
	}
	if p.cur == nil && p.obs.Runtime != nil && len(p.obs.Runtime.Sandboxes) > 0 && !p.busy(CreateSandbox) && !p.wantsSandbox() {
		return true // it lost its sandbox and nothing would run in a new one
	}
	for _, m := range p.allContainers {
		if m.role == regularContainer && !p.finished(m) {
			return false
		}
	}
	return true
}

// finished: a main container that ended for good.
func (p *planner) finished(m *containerState) bool {
	if m.last == nil {
		return lastRan(&p.obs.Last, m.c.Name) && !p.vanishedRestarts(m)
	}
	return exited(m.last) && !restartable(p.pod, m, m.last) && container.SameDefinition(m.last.Hash, m.c)
}

func (p *planner) overDeadline() bool {
	at := p.activeUntil()
	return !at.IsZero() && !p.now.Before(at)
}

// ownGrace is the grace the pod asks for, in seconds.
func (p *planner) ownGrace() int64 {
	if g := p.pod.DeletionGracePeriodSeconds; g != nil && p.pod.DeletionTimestamp != nil {
		return *g
	}
	if g := p.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return max(*g, 1)
	}
	return defaultGrace
}

// probeGrace is the grace of a container that a probe ends.
func (p *planner) probeGrace(c *v1.Container, kind string) int64 {
	probe := c.LivenessProbe
	if kind == "startup" {
		probe = c.StartupProbe
	}
	if p.pod.DeletionTimestamp == nil && probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return *probe.TerminationGracePeriodSeconds
	}
	return p.ownGrace()
}

// terminate takes everything down in order: containers (sidecars last),
// sandboxes and volumes, cgroup, then the API object, then what the runtime
// and the disk still hold.
func (p *planner) terminate() {
	p.plan.Terminating, p.plan.Grace = true, p.end.grace
	p.because("ending", p.end.why)
	p.endEvents()
	for k := range p.obs.InFlight {
		switch k.Kind {
		case Admit, Mount, Pull, Start, PostStart, CreateSandbox, Allocate, Resize:
			p.plan.Cancel = append(p.plan.Cancel, k)
		}
	}
	if !p.stopContainers() {
		return
	}
	sandboxes := p.stopSandboxes()
	if !p.obs.Unmounted {
		p.emit(action{Kind: Unmount}, fact("containers", "all ended"))
	}
	if !sandboxes || p.busy(Cgroup, CreateSandbox, Mount) {
		return
	}
	if !p.obs.CgroupRemoved {
		p.emit(action{Kind: RemoveCgroup}, fact("sandbox", "stopped"))
	}
	if !p.obs.Unmounted || !p.obs.CgroupRemoved {
		return
	}
	if p.pod.DeletionTimestamp != nil && !p.spec.Static && !p.spec.Orphan && !p.obs.Deleted && !p.spec.Removed {
		if terminal(p.obs.Acked) {
			p.emit(action{Kind: Delete}, fact("status", "delivered"), fact("node", "holds nothing of it"))
		}
		return
	}
	if p.spec.Removed || p.spec.Orphan || p.obs.Deleted {
		p.clean()
	}
}

// endEvents reports what about the pod's end is worth an event of its own.
func (p *planner) endEvents() {
	if f := p.end.force; f != nil && f.Reason == deadlineReason && !terminal(p.obs.Last.Phase) {
		p.plan.Events = append(p.plan.Events, event{Reason: f.Reason, Message: f.Message, Key: f.Reason})
	}
	if p.spec.Kill == nil || p.obs.TerminatingSince.IsZero() || p.quiet() {
		return
	}
	patience := max(10*time.Second, time.Duration(p.end.grace)*time.Second*3/2)
	if at := p.obs.TerminatingSince.Add(patience); p.now.Before(at) {
		p.wakeAt(at)
		return
	}
	p.plan.Events = append(p.plan.Events, event{
		Warning: true, Reason: "ExceededGracePeriod", Key: "ExceededGracePeriod",
		Message: "Container runtime did not kill the pod within specified grace period.",
	})
}

// quiet: nothing of the pod runs and nothing is about to.
func (p *planner) quiet() bool {
	if p.busy(Start, CreateSandbox) {
		return false
	}
	for _, c := range p.held() {
		if alive(c) {
			return false
		}
	}
	return true
}

// stopContainers ends everything that is alive. A sidecar waits for all main
// containers and for the sidecars declared after it, but not longer than the
// grace; its pre-stop hook does not wait.
func (p *planner) stopContainers() (done bool) {
	since := p.obs.TerminatingSince
	if since.IsZero() {
		since = p.now
	}
	over := since.Add(time.Duration(p.end.grace) * time.Second)
	if p.end.grace < p.ownGrace() || p.spec.Kill != nil && p.spec.Kill.Now {
		over = p.now // shortened: no more waiting for others
	}
	blocked := false // by a later container that is still alive
	byName := map[string]*containerState{}
	for i := len(p.allContainers) - 1; i >= 0; i-- {
		m := p.allContainers[i]
		byName[m.c.Name] = m
		up := false
		for _, c := range p.held() {
			if c.Name != m.c.Name || !alive(c) {
				continue
			}
			up = true
			msg := "Stopping container " + m.c.Name
			if m.role == sidecarContainer && blocked && p.now.Before(over) {
				p.preStop(m, c, p.deadlineFor(c, p.end.grace))
				p.wakeAt(over)
				continue
			}
			p.stop(c, p.end.grace, msg, fact("pod", p.end.why))
		}
		if m.role == regularContainer || m.role == sidecarContainer {
			blocked = blocked || up
		}
	}
	for _, c := range p.held() {
		if _, known := byName[c.Name]; !known && alive(c) {
			p.stop(c, p.end.grace, "Stopping container "+c.Name, fact("pod", p.end.why))
		}
	}
	return p.quiet()
}

// deadlineFor is when a container that is being stopped must be gone. What was
// promised before is only ever shortened.
func (p *planner) deadlineFor(c *runtime.Container, grace int64) time.Time {
	return earliest(p.obs.StopBy[c.ID], p.now.Add(time.Duration(grace)*time.Second))
}

// stop ends one container: its pre-stop hook first, then the signal.
func (p *planner) stop(c *runtime.Container, grace int64, message string, because ...journal.Fact) {
	at, now := p.deadlineFor(c, grace), p.spec.Kill != nil && p.spec.Kill.Now
	if now {
		hook := actionKey{PreStop, c.ID}
		if _, runs := p.obs.InFlight[hook]; runs {
			p.plan.Cancel = append(p.plan.Cancel, hook)
		}
	} else if m := p.containerNamed(c.Name); m != nil && c.State == runtime.Running && grace > 0 && !p.preStop(m, c, at) {
		return
	}
	p.emit(action{
		Kind: Stop, Container: c.Name, ID: c.ID, Deadline: at, Now: now,
		Event: &event{Reason: "Killing", Message: message, Container: c.Name, Key: "killing/" + c.ID},
	}, append(because, fact("grace", fmt.Sprintf("%ds", grace)))...)
}

// preStop runs a container's pre-stop hook and tells whether it is behind it.
func (p *planner) preStop(m *containerState, c *runtime.Container, at time.Time) (over bool) {
	if !needsPreStop(m.c) || p.obs.PreStopped[c.ID] {
		return true
	}
	if _, stopping := p.obs.InFlight[actionKey{Stop, c.ID}]; stopping {
		return true
	}
	p.emit(action{
		Kind: PreStop, Container: c.Name, ID: c.ID, Deadline: at,
		Event: &event{Reason: "Killing", Message: "Stopping container " + c.Name, Container: c.Name, Key: "killing/" + c.ID},
	}, fact("pre-stop hook", "to run"))
	return false
}

func (p *planner) containerNamed(name string) *containerState {
	for _, m := range p.allContainers {
		if m.c.Name == name {
			return m
		}
	}
	return nil
}

func (p *planner) stopSandboxes() (done bool) {
	done = true
	if p.obs.Runtime == nil {
		return true
	}
	for _, b := range p.obs.Runtime.Sandboxes {
		if !p.obs.Stopped[b.ID] {
			done = false
			p.emit(action{Kind: StopSandbox, ID: b.ID}, fact("containers", "all ended"))
		}
	}
	return done
}

// clean removes what the runtime and the disk still hold of a pod that no one
// asks for any more.
func (p *planner) clean() {
	if p.obs.Runtime != nil {
		for _, b := range p.obs.Runtime.Sandboxes {
			// Removing a sandbox removes the containers in it.
			p.emit(action{Kind: RemoveSandbox, ID: b.ID}, fact("pod", p.end.why))
		}
		for _, c := range p.obs.Runtime.Containers {
			if !p.hasSandbox(c.SandboxID) {
				p.emit(action{Kind: Remove, Container: c.Name, ID: c.ID}, fact("pod", p.end.why))
			}
		}
		return
	}
	if !p.obs.Cleaned {
		p.emit(action{Kind: Clean}, fact("runtime", "holds nothing of it"))
		return
	}
	p.plan.Done = (p.spec.Removed || p.spec.Orphan) && len(p.obs.InFlight) == 0
}

func (p *planner) hasSandbox(id string) bool {
	for _, b := range p.obs.Runtime.Sandboxes {
		if b.ID == id {
			return true
		}
	}
	return false
}
