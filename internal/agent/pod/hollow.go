package pod

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/runtime"
)

// Hollow is a pod on a host that is not there: what happens to it is
// planned, and what it says of itself is computed and published, by the code
// of a worker; but its runtime is a few fields in which everything succeeds at
// once. It has no goroutine. It is not safe for concurrent use.
type Hollow struct {
	spec spec
	obs  observed
	pub  publisher
	held *runtime.Pod
	ip   string
	seq  int
	done []patched
}

// NewHollow makes a pod that runs under an address on a node.
func NewHollow(pod *v1.Pod, ip string, node Node, now time.Time) *Hollow {
	return &Hollow{spec: spec{Pod: pod}, ip: ip, held: &runtime.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name},
		obs: observed{memory: newMemory(pod.Status, now), RuntimeName: "hollow", Node: node}}
}

// Set tells the pod's newest definition.
func (h *Hollow) Set(pod *v1.Pod) { h.spec.Pod = pod }

// Gone tells that the API no longer holds the pod.
func (h *Hollow) Gone() { h.spec.Removed = true }

// Pod is the newest definition.
func (h *Hollow) Pod() *v1.Pod { return h.spec.Pod }

// Write is what a hollow pod wants written: a patch of its status, or its
// deletion.
type Write struct {
	Patch  []byte
	Delete bool
}

// hollowSteps bounds how long one Step goes on: a pod that is never content is
// a fault of the planner, and must not hang the process.
const hollowSteps = 100

// Step does everything that can be done now. A write is to be answered with
// Wrote before the next Step. Over says that nothing is left of the pod.
func (h *Hollow) Step(now time.Time) (write *Write, wake time.Time, over bool, err error) {
	for range hollowSteps {
		h.obs.Runtime = nil
		if !h.held.Empty() {
			h.obs.Runtime = h.held
		}
		h.obs.forget(h.obs.Runtime)
		h.pub.take(h.spec, nil, h.done, now)
		h.done = h.done[:0]
		h.obs.Acked = h.pub.base.Phase
		h.obs.Deleted = h.obs.Deleted || h.pub.gone
		plan := next(h.obs.view(h.spec), &h.obs, now)
		h.obs.Accept(plan, now)
		if len(plan.Actions) == 0 {
			body, again, err := h.pub.next(plan.Status, now)
			if body != nil {
				write = &Write{Patch: body}
			}
			return write, earliest(plan.WakeAt, again), plan.Done && !h.pub.busy, err
		}
		for _, a := range plan.Actions {
			if a.Kind == Delete {
				write = &Write{Delete: true}
				continue
			}
			r := h.perform(a, now)
			r.Action = a
			h.obs.Done(r, now)
		}
		if write != nil {
			return write, time.Time{}, false, nil
		}
	}
	return nil, time.Time{}, false, fmt.Errorf("pod %s/%s: its plan does not come to rest", h.spec.Pod.Namespace, h.spec.Pod.Name)
}

// Wrote tells how a write ended. For a patch pod is what the API answered; a
// deletion of what is gone already succeeded.
func (h *Hollow) Wrote(w *Write, pod *v1.Pod, err error, now time.Time) {
	if !w.Delete {
		h.done = append(h.done, patched{target: h.pub.target, pod: pod, err: err})
		return
	}
	r := result{Action: action{Kind: Delete}}
	if err != nil {
		r.Err = failure(err, "")
	}
	h.obs.Done(r, now)
}

// perform is the host: what is asked for is so. What the runtime holds is
// replaced and never changed, as everywhere.
func (h *Hollow) perform(a action, now time.Time) (r result) {
	next := *h.held
	next.Sandboxes, next.Containers = slices.Clone(h.held.Sandboxes), slices.Clone(h.held.Containers)
	switch a.Kind {
	case Pull:
		r.ImageRef = containerOf(h.spec.Pod, a.Container).Image
	case CreateSandbox:
		b := &runtime.Sandbox{ID: h.id("sandbox"), Attempt: a.Attempt, Ready: true, CreatedAt: now,
			HostNetwork: h.spec.Pod.Spec.HostNetwork}
		if !b.HostNetwork {
			b.IPs = []string{h.ip}
		}
		next.Sandboxes = append([]*runtime.Sandbox{b}, next.Sandboxes...)
	case Start:
		c := containerOf(h.spec.Pod, a.Container)
		r.ContainerID = h.id(a.Container)
		next.Containers = append([]*runtime.Container{{ID: r.ContainerID, SandboxID: next.Sandboxes[0].ID, Name: a.Container,
			Attempt: a.Attempt,
			State:   runtime.Running, CreatedAt: now, StartedAt: now, Image: c.Image, ImageRef: c.Image, Hash: container.Hash(c)}},
			next.Containers...)
	case Stop:
		for i, c := range next.Containers {
			if c.ID == a.ID && c.State != runtime.Exited {
				ended := *c
				ended.State, ended.FinishedAt, ended.ExitCode, ended.Reason = runtime.Exited, now, 143, "Error"
				next.Containers[i] = &ended
			}
		}
	case Remove:
		next.Containers = slices.DeleteFunc(next.Containers, func(c *runtime.Container) bool { return c.ID == a.ID })
	case StopSandbox:
		for i, b := range next.Sandboxes {
			if b.ID == a.ID {
				down := *b
				down.Ready = false
				next.Sandboxes[i] = &down
			}
		}
	case RemoveSandbox:
		next.Sandboxes = slices.DeleteFunc(next.Sandboxes, func(b *runtime.Sandbox) bool { return b.ID == a.ID })
		next.Containers = slices.DeleteFunc(next.Containers, func(c *runtime.Container) bool { return c.SandboxID == a.ID })
	case Allocate, Resize:
		r.Err = &actionFailure{Reason: v1.PodReasonInfeasible, Message: "a hollow node resizes no pods"}
	case Admit, Cgroup, Mount, PostStart, PreStop, Unmount, RemoveCgroup, Clean:
		// There is nothing to it on a host that is not there.
	default:
		r.Err = &actionFailure{Reason: "Unknown", Message: "a hollow node cannot perform " + string(a.Kind)}
	}
	h.held = &next
	return r
}

func (h *Hollow) id(what string) string {
	h.seq++
	return fmt.Sprintf("%s-%s-%d", h.spec.Pod.UID, what, h.seq)
}
