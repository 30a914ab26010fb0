package pod

import (
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// The life of a pod. Every arrow is a plan that found what the arrow waits for;
// nothing goes back but the two marked ones.
//
//	              refused
//	  admit ------------------------------------------+
//	    |                                             |
//	  cgroup                                          |
//	    |                                             |
//	  volumes  sandbox <--(sandbox lost)--+           |
//	    |        |  images                |           |
//	    +--------+----+                   |           |
//	                  v                   |           |
//	  init containers, sidecars -> main containers    |
//	                  ^                   |           |
//	                  +-----(back-off)----+           |
//	                                      |           v
//	     deleted, killed, over deadline,  +----> stop containers, sidecars last
//	     all ended, gone from its source              |
//	                                             stop sandboxes, unmount
//	                                                  |
//	                                             remove cgroup -> status delivered
//	                                                  |
//	                                             delete from the API -> clean -> done

// phases is the life of a pod in the order it is lived. Each looks at what is
// there, gives out what is missing and says whether the next one may look too.
// Volumes, sandbox and images do not wait for each other; a container waits for
// all three.
var phases = []struct {
	name string
	step func(*planner) (goOn bool)
}{
	{"admit", (*planner).admit},
	{"deadline", (*planner).deadline},
	{"cgroup", (*planner).cgroup},
	{"volumes", (*planner).volumes},
	{"sandbox", (*planner).sandbox},
	{"images", (*planner).images},
	{"restart all", (*planner).restartAll},
	{"hooks", (*planner).hooks},
	{"resize", (*planner).resize},
	{"ephemeral", (*planner).ephemeral},
	{"init", (*planner).initContainers},
	{"main", (*planner).mainContainers},
	{"prune", (*planner).prune},
}

// planner is one evaluation of Plan.
type planner struct {
	spec spec
	pod  *v1.Pod
	obs  *observed
	now  time.Time
	plan plan

	// cur is the sandbox that containers run in; nil while there is none.
	cur           *runtime.Sandbox
	allContainers []*containerState
	// wait is why a container that should run does not, for its status.
	wait map[string]*v1.ContainerStateWaiting
	end  *ending
	// restartingNow: this very plan takes all containers away to start over.
	restartingNow bool
}

// next decides what happens next to a pod and what its status is. It changes
// nothing it is given.
func next(spec spec, obs *observed, now time.Time) plan {
	p := &planner{spec: spec, pod: spec.Pod, obs: obs, now: now, wait: map[string]*v1.ContainerStateWaiting{}}
	p.cur = currentSandbox(spec.Pod, obs.Runtime)
	p.allContainers = allContainers(spec.Pod, obs.Runtime, p.cur)
	if p.end = p.ending(); p.end != nil {
		p.terminate()
	} else {
		for _, ph := range phases {
			if !ph.step(p) {
				p.because("waiting in phase", ph.name)
				break
			}
		}
	}
	p.plan.Status = p.status()
	return p.plan
}

func terminal(ph v1.PodPhase) bool { return podutil.TerminalPhase(ph) }

// currentSandbox is the newest one, if containers can be started in it.
func currentSandbox(pod *v1.Pod, held *runtime.Pod) *runtime.Sandbox {
	if held == nil || len(held.Sandboxes) == 0 {
		return nil
	}
	b := held.Sandboxes[0]
	if !b.Ready || b.HostNetwork != pod.Spec.HostNetwork || !b.HostNetwork && len(b.IPs) == 0 {
		return nil
	}
	return b
}

func (p *planner) because(name, value string) {
	p.plan.Because = append(p.plan.Because, journal.Fact{Name: name, Value: value})
}

func (p *planner) wakeAt(t time.Time) { p.plan.WakeAt = earliest(p.plan.WakeAt, t) }

func (p *planner) inFlight(k actionKey) bool {
	_, ok := p.obs.InFlight[k]
	return ok
}

// busy tells whether any action of a kind is in flight.
func (p *planner) busy(kinds ...kind) bool {
	for k := range p.obs.InFlight {
		for _, kind := range kinds {
			if k.Kind == kind {
				return true
			}
		}
	}
	return false
}

// emit gives out an action unless it is in flight already or failed a moment
// ago; it tells whether it did.
func (p *planner) emit(a action, because ...journal.Fact) bool {
	key := a.Key()
	if p.givenOut(key) {
		return false
	}
	if have, ok := p.obs.InFlight[key]; ok {
		sooner := !a.Deadline.IsZero() && a.Deadline.Before(have.Deadline) || a.Now && !have.Now
		if !sooner {
			return false
		}
	} else if f, ok := p.obs.Failed[key]; ok && p.now.Before(f.RetryAt) {
		p.wakeAt(f.RetryAt)
		return false
	} else if ok {
		because = append(because, journal.Fact{Name: "failed before", Value: strconv.Itoa(f.Count) + " times"})
	}
	a.Because = append(because, a.Because...)
	p.plan.Actions = append(p.plan.Actions, a)
	return true
}

func fact(name, value string) journal.Fact { return journal.Fact{Name: name, Value: value} }

// admit asks once whether the node takes the pod.
func (p *planner) admit() bool {
	if p.obs.Admitted {
		return true
	}
	p.emit(action{Kind: Admit}, fact("pod", "new on this node"))
	return false
}

// deadline sets the alarm for activeDeadlineSeconds; ending acts on it.
func (p *planner) deadline() bool {
	if at := p.activeUntil(); !at.IsZero() {
		p.wakeAt(at)
	}
	return true
}

func (p *planner) activeUntil() time.Time {
	d, start := p.pod.Spec.ActiveDeadlineSeconds, p.obs.Last.StartTime
	if d == nil || start == nil {
		return time.Time{}
	}
	return start.Add(time.Duration(*d) * time.Second)
}

func (p *planner) cgroup() bool {
	if p.obs.CgroupReady {
		return true
	}
	p.emit(action{Kind: Cgroup}, fact("cgroup", "not made yet"))
	return false
}

func (p *planner) volumes() bool {
	if !p.obs.VolumesReady {
		p.emit(action{Kind: Mount}, fact("volumes", "not mounted yet"))
	}
	return true
}

// sandbox makes sure of exactly one sandbox. One that died is cleared away
// first: everything in it is stopped, then its network is torn down.
func (p *planner) sandbox() bool {
	if p.cur != nil {
		return true
	}
	var old []*runtime.Sandbox
	if p.obs.Runtime != nil {
		old = p.obs.Runtime.Sandboxes
	}
	clear := true
	for _, m := range p.held() {
		if alive(m) {
			clear = false
			p.stop(m, p.ownGrace(), "Pod sandbox changed", fact("sandbox", "not ready"))
		}
	}
	if !clear {
		return false
	}
	for _, b := range old {
		if !p.obs.Stopped[b.ID] {
			clear = false
			a := action{Kind: StopSandbox, ID: b.ID}
			a.Event = &event{Reason: "SandboxChanged", Message: "Pod sandbox changed, it will be killed and re-created.",
				Key: "sandbox/" + b.ID}
			p.emit(a, fact("sandbox", "not usable"))
		}
	}
	if !clear || !p.wantsSandbox() {
		return false
	}
	attempt := uint32(0)
	if len(old) > 0 {
		attempt = old[0].Attempt + 1
	}
	p.emit(action{Kind: CreateSandbox, Attempt: attempt}, fact("sandboxes before", strconv.Itoa(len(old))))
	return true
}

// wantsSandbox: a pod that lost its sandbox gets a new one only if something
// would run in it.
func (p *planner) wantsSandbox() bool {
	anyRan := false
	for _, m := range p.allContainers {
		anyRan = anyRan || m.role != ephemeralContainer && m.ran()
	}
	if !anyRan || p.startingOver() {
		return true
	}
	for _, m := range p.allContainers {
		if m.role == regularContainer && p.startable(m) {
			return true
		}
	}
	return false
}

// startable: a main container that would be started in a new sandbox.
func (p *planner) startable(m *containerState) bool {
	if m.last == nil || m.last.State != runtime.Exited {
		return p.pod.Spec.RestartPolicy != v1.RestartPolicyNever || m.last == nil && !p.anyMainRan()
	}
	return restartable(p.pod, m, m.last)
}

func (p *planner) anyMainRan() bool {
	for _, m := range p.allContainers {
		if m.role == regularContainer && m.ran() {
			return true
		}
	}
	return false
}

// held lists every instance the runtime holds, newest first.
func (p *planner) held() []*runtime.Container {
	if p.obs.Runtime == nil {
		return nil
	}
	return p.obs.Runtime.Containers
}

// images makes the images of everything that has not started yet present,
// alongside the sandbox. What is restarted asks again at its start.
func (p *planner) images() bool {
	for _, m := range p.allContainers {
		p.outdated(m)
		if m.role != ephemeralContainer && m.cur == nil && m.last == nil {
			p.pull(m)
		}
	}
	return true
}

// outdated gives up pulls of images that the container asked for before.
func (p *planner) outdated(m *containerState) {
	for k, a := range p.obs.InFlight {
		if k.Kind == Pull && a.Container == m.c.Name && a.image != m.c.Image {
			p.plan.Cancel = append(p.plan.Cancel, k)
		}
	}
}

// pull tells whether the member's image is at hand, asking for it if not.
func (p *planner) pull(m *containerState) bool {
	if have, ok := p.obs.Images[m.c.Name]; ok && have.Name == m.c.Image {
		return true
	}
	key := pullKey(m.c.Name, m.c.Image)
	if p.inFlight(actionKey{Start, m.c.Name}) {
		return true
	}
	p.emit(action{Kind: Pull, Container: m.c.Name, image: m.c.Image}, fact("image", m.c.Image))
	if f, ok := p.obs.Failed[key]; ok {
		p.wait[m.c.Name] = &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	}
	return false
}

// hooks runs what must run once in a container that has just started.
func (p *planner) hooks() bool {
	if p.cur == nil {
		return false
	}
	for _, m := range p.allContainers {
		if alive(m.cur) && needsPostStart(m.c) && !p.obs.PostStarted[m.cur.ID] {
			if _, failed := p.obs.Failed[actionKey{PostStart, m.cur.ID}]; !failed {
				p.emit(action{Kind: PostStart, Container: m.c.Name, ID: m.cur.ID}, fact("container", "started"))
			}
		}
	}
	return true
}

func needsPostStart(c *v1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PostStart != nil }
func needsPreStop(c *v1.Container) bool   { return c.Lifecycle != nil && c.Lifecycle.PreStop != nil }

// settled: the container runs and its post-start hook is behind it.
func (p *planner) settled(m *containerState) bool {
	return m.cur != nil && m.cur.State == runtime.Running &&
		(!needsPostStart(m.c) || p.obs.PostStarted[m.cur.ID])
}

// started is what the next init container waits for from a sidecar.
func (p *planner) started(m *containerState) bool {
	return p.settled(m) && p.probe(m).Started
}

// probe returns what is known about a running container's probes. Before the
// first result a container with a startup probe has not started and one with a
// readiness probe is not ready, unless the status says so already: that is the
// memory of an agent that was restarted.
func (p *planner) probe(m *containerState) Probe {
	if r, ok := p.obs.Probes[m.cur.ID]; ok {
		return r
	}
	r := Probe{Started: m.c.StartupProbe == nil, Ready: m.c.ReadinessProbe == nil}
	if s := lastStatus(&p.obs.Last, m.c.Name); s != nil && s.ContainerID == p.idOf(m.cur) {
		r.Started = r.Started || s.Started != nil && *s.Started
		r.Ready = r.Ready || s.Ready
	}
	r.Ready = r.Ready && r.Started
	return r
}

func (p *planner) idOf(c *runtime.Container) string { return p.obs.RuntimeName + "://" + c.ID }

// ephemeral starts each ephemeral container once.
func (p *planner) ephemeral() bool {
	for _, m := range p.allContainers {
		if m.role != ephemeralContainer || m.last != nil || lastRan(&p.obs.Last, m.c.Name) {
			continue
		}
		p.start(m, nil, fact("ephemeral container", "never started"))
	}
	return true
}

// initialized: a main container was made in this sandbox, so no init
// container runs in it again.
func (p *planner) initialized() bool {
	for _, m := range p.allContainers {
		if m.role == regularContainer && (m.cur != nil || p.inFlight(actionKey{Start, m.c.Name})) {
			return true
		}
	}
	return false
}

// initContainers brings init containers and sidecars up one by one, and later
// keeps the sidecars running.
func (p *planner) initContainers() bool {
	if p.initialized() {
		for _, m := range p.allContainers {
			if m.role == sidecarContainer && !p.check(m) {
				p.run(m)
			}
		}
		return true
	}
	for _, m := range p.allContainers {
		switch m.role {
		case initContainer:
			if exited(m.cur) && m.succeeded(m.cur) {
				continue
			}
			if m.cur == nil || exited(m.cur) && restartable(p.pod, m, m.cur) || m.cur.State == runtime.Created {
				p.run(m)
			} else {
				p.check(m)
			}
			return false
		case sidecarContainer:
			if !p.check(m) {
				p.run(m)
				return false
			}
			if !p.started(m) {
				return false
			}
		}
	}
	return true
}

// mainContainers starts what does not run, one at a time in the order of the
// spec; the next does not wait for the previous to be ready, only for its
// post-start hook.
func (p *planner) mainContainers() bool {
	for _, m := range p.allContainers {
		if m.role != regularContainer {
			continue
		}
		if p.check(m) {
			if _, running := p.obs.InFlight[actionKey{PostStart, m.cur.ID}]; running || !p.settled(m) && p.hookPending(m) {
				return true
			}
			continue
		}
		p.run(m)
		if p.inFlight(actionKey{Start, m.c.Name}) || p.givenOut(actionKey{Start, m.c.Name}) {
			return true
		}
	}
	return true
}

func (p *planner) hookPending(m *containerState) bool {
	return p.givenOut(actionKey{PostStart, m.cur.ID})
}

func (p *planner) givenOut(k actionKey) bool {
	for _, a := range p.plan.Actions {
		if a.Key() == k {
			return true
		}
	}
	return false
}
