package pod

import (
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/controller"
)

// memory is what the agent itself did for a pod. It is lost when the agent
// dies; Plan must converge from an empty one.
type memory struct {
	InFlight map[actionKey]action
	Failed   map[actionKey]actionFailure

	Admitted bool
	Rejected *Rejection

	CgroupReady  bool
	VolumesReady bool
	// Images are what pulls ended with, by container name; used up by the
	// container's next start.
	Images  map[string]image
	Backoff map[string]backoff
	// Met is when this agent met the pod; ranThen are the containers (by the ID
	// that statuses use) that were taken for running until then.
	Met     time.Time
	ranThen map[string]bool
	// Logged is the highest restart count, by container, that logs on disk showed
	// of when the agent met the pod: it outlives the runtime.
	Logged map[string]uint32
	// PostStarted and PreStopped tell which containers' hooks have run, by the
	// runtime's ID. A container that the API shows running was past its post-start
	// hook when that was written: agents, also a kubelet, show it waiting till then.
	PostStarted map[string]bool
	PreStopped  map[string]bool
	// StopBy is when a container that is being stopped was promised to be gone.
	StopBy map[string]time.Time

	nodePromise
	removed

	// Last is the status planned last; before the first plan, the one in the
	// API.
	Last v1.PodStatus
	// Acked is the phase that the API is known to hold.
	Acked v1.PodPhase
}

// nodePromise is what the node promised the pod.
type nodePromise struct {
	Allocation allocation // without resources it is the spec
	seen       *v1.Pod    // the spec that promised was made from
	promised   *v1.Pod
	asked      resources // what the spec wanted when it was last looked at
}

// removed is how far the removal of the pod has come.
type removed struct {
	// TerminatingSince is when termination was first planned.
	TerminatingSince time.Time
	Stopped          map[string]bool // sandboxes whose network is torn down
	Unmounted        bool
	CgroupRemoved    bool
	Cleaned          bool
	Deleted          bool // the API no longer holds the pod
}

// image is what a pull ended with: the name that was asked for and the
// reference to run. A container may ask for another image meanwhile.
type image struct{ Name, Ref string }

// result is how an action ended.
type result struct {
	Action action
	// Err, when set, is the failure in the words of the status.
	Err *actionFailure
	// Canceled: the action was given up because the plan asked to; it is
	// neither success nor failure.
	Canceled bool
	// ImageRef is what a pull found.
	ImageRef string
	// ContainerID is what a start made.
	ContainerID string
	Rejected    *Rejection
	// allocation is the promise that was made.
	Allocation *allocation

	took   time.Duration
	flight *flight // which attempt of the worker this is the end of
}

// newMemory is the memory of an agent that meets a pod now, of which the API
// holds the status last.
func newMemory(last v1.PodStatus, now time.Time) memory {
	ran, hooked := map[string]bool{}, map[string]bool{}
	for _, list := range [][]v1.ContainerStatus{last.InitContainerStatuses, last.ContainerStatuses} {
		for i := range list {
			ran[list[i].ContainerID] = list[i].State.Running != nil
			if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && list[i].State.Running != nil {
				hooked[id] = true
			}
		}
	}
	return memory{
		Met: now, ranThen: ran,
		InFlight: map[actionKey]action{}, Failed: map[actionKey]actionFailure{}, Images: map[string]image{},
		Backoff: map[string]backoff{}, PostStarted: hooked, PreStopped: map[string]bool{}, StopBy: map[string]time.Time{},
		removed: removed{Stopped: map[string]bool{}}, Last: last, Acked: last.Phase,
	}
}

// trustRunning takes all that runs for past its post-start hook: there is no
// status to ask, and a hook that runs again in a container that serves does more
// harm than one that an agent's crash cut short.
func (m *memory) trustRunning(held *runtime.Pod) {
	if held == nil {
		return
	}
	for _, c := range held.Containers {
		if c.State == runtime.Running {
			m.PostStarted[c.ID] = true
		}
	}
}

// heard takes in the status that the API holds: a pod that is over there is
// over, no matter who said so.
func (m *memory) merge(api *v1.PodStatus) {
	if terminal(api.Phase) && !terminal(m.Last.Phase) {
		m.Last.Phase, m.Last.Reason, m.Last.Message = api.Phase, api.Reason, api.Message
	}
}

// endedUnseen: the container ended while no agent was looking.
func (m *memory) endedUnseen(id string, c *runtime.Container) bool {
	return m.ranThen[id] && !c.FinishedAt.After(m.Met)
}

// Accept records that the actions of a plan have begun.
func (m *memory) Accept(p plan, now time.Time) {
	if p.Terminating && m.TerminatingSince.IsZero() {
		m.TerminatingSince = now
	}
	for _, a := range p.Actions {
		m.InFlight[a.Key()] = a
		if a.Kind == Stop || a.Kind == PreStop {
			m.StopBy[a.ID] = a.Deadline
		}
		if a.Backoff != nil {
			m.Backoff[a.Container] = *a.Backoff
		}
	}
	m.Last = p.Status
}

// retry are the pauses before an action that failed is tried again.
var retry = map[kind]controller.Backoff{
	Mount:         {First: 50 * time.Millisecond, Most: 2*time.Minute + 2*time.Second},
	CreateSandbox: {First: 500 * time.Millisecond, Most: 20 * time.Second},
	Pull:          {First: 10 * time.Second, Most: 5 * time.Minute},
	Start:         {First: time.Second, Most: 15 * time.Second},
	Stop:          {First: 500 * time.Millisecond, Most: 10 * time.Second},
	Delete:        {First: 100 * time.Millisecond, Most: 10 * time.Second},
	Allocate:      {First: 30 * time.Second, Most: 3 * time.Minute},
	Resize:        {First: time.Second, Most: time.Minute},
}

func retryAfter(k kind, count int) time.Duration {
	r, ok := retry[k]
	if !ok {
		r = controller.Backoff{First: 500 * time.Millisecond, Most: 30 * time.Second}
	}
	return r.Delay(count)
}

// Done records how an action ended.
func (m *memory) Done(r result, now time.Time) {
	key := r.Action.Key()
	delete(m.InFlight, key)
	if r.Canceled {
		return
	}
	if r.Err != nil {
		f := *r.Err
		f.Count = m.Failed[key].Count + 1
		f.At = now
		if f.RetryAt.IsZero() {
			f.RetryAt = now.Add(retryAfter(key.Kind, f.Count))
		}
		m.Failed[key] = f
		m.failed(r)
		return
	}
	delete(m.Failed, key)
	a := r.Action
	switch a.Kind {
	case Admit:
		m.Admitted, m.Rejected = r.Rejected == nil, r.Rejected
	case Cgroup:
		m.CgroupReady = true
	case Mount:
		m.VolumesReady = true
	case Pull:
		m.Images[a.Container] = image{Name: a.image, Ref: r.ImageRef}
		maps.DeleteFunc(m.Failed, func(k actionKey, _ actionFailure) bool {
			return k.Kind == Pull && strings.HasPrefix(k.Name,
				a.Container+" ")
		})
	case Start:
		delete(m.Images, a.Container)
	case PostStart:
		m.PostStarted[a.ID] = true
	case PreStop:
		m.PreStopped[a.ID] = true
	case Remove:
		delete(m.PostStarted, a.ID)
		delete(m.PreStopped, a.ID)
	case StopSandbox:
		m.Stopped[a.ID] = true
	case RemoveSandbox:
		delete(m.Stopped, a.ID)
	case Unmount:
		m.Unmounted, m.VolumesReady = true, false
	case RemoveCgroup:
		m.CgroupRemoved, m.CgroupReady = true, false
	case Allocate:
		m.allocated(*r.Allocation)
		delete(m.Failed, actionKey{Kind: Resize})
	case Resize:
		m.allocated(allocation{Resources: m.Allocation.Resources})
	case Clean:
		m.Cleaned = true
	case Delete:
		m.Deleted = true
	}
}

// retryNow ends the pause after failures of what waits for others.
func (m *memory) retryNow(now time.Time) {
	for k, f := range m.Failed {
		if (k.Kind == Mount || k.Kind == Start || k.Kind == Allocate) && f.RetryAt.After(now) {
			f.RetryAt = now
			m.Failed[k] = f
		}
	}
}

// failed records the few things that a failure settles.
func (m *memory) failed(r result) {
	switch r.Action.Kind {
	case PreStop, PostStart:
		// A hook runs once: a failed pre-stop hook does not hold up the stop,
		// a failed post-start hook ends the container (Plan sees it in Failed).
		if r.Action.Kind == PreStop {
			m.PreStopped[r.Action.ID] = true
		}
	case Start:
		// The image may be what was wrong: ask for it again before the retry.
		delete(m.Images, r.Action.Container)
	}
}

// forget drops what is remembered about containers that no longer exist.
func (m *memory) forget(p *runtime.Pod) {
	alive := map[string]bool{}
	if p != nil {
		for _, c := range p.Containers {
			alive[c.ID] = true
		}
		for _, b := range p.Sandboxes {
			alive[b.ID] = true
		}
	}
	gone := func(id string, _ bool) bool { return !alive[id] }
	maps.DeleteFunc(m.Stopped, gone)
	maps.DeleteFunc(m.PostStarted, gone)
	maps.DeleteFunc(m.PreStopped, gone)
	maps.DeleteFunc(m.StopBy, func(id string, _ time.Time) bool { return !alive[id] })
	maps.DeleteFunc(m.Failed, func(k actionKey, _ actionFailure) bool {
		switch k.Kind {
		case PostStart, PreStop, Stop, Remove, StopSandbox, RemoveSandbox:
			return !alive[k.Name]
		}
		return false
	})
}
