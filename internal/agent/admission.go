package agent

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/pod"
)

// AdmitFunc is a further opinion on whether the node takes a pod: eviction,
// shutdown and the like. ok false refuses it with reason and message.
type AdmitFunc func(pod *v1.Pod) (reason, message string, ok bool)

// admission takes pods one after the other, so that two never get the same
// room.
type admission struct {
	node  *nodeView
	more  []AdmitFunc
	state func(uid types.UID) (*v1.Pod, bool)
	// drop takes back what more gave to a pod that is refused or gone.
	drop func(uid types.UID)

	mu       sync.Mutex
	admitted map[types.UID]*v1.Pod
}

// Admit implements the decision; pods that run already are only counted.
func (a *admission) Admit(ctx context.Context, p *v1.Pod, adopted bool) *pod.Rejection {
	if !adopted && !pod.IsStatic(p) {
		a.node.wait(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !adopted {
		for _, f := range a.more {
			if reason, message, ok := f(p); !ok {
				return &pod.Rejection{Reason: reason, Message: message}
			}
		}
		if node := a.node.get(); node != nil {
			if r := pod.Fit(p, node, a.others(p.UID)); r != nil {
				a.drop(p.UID)
				return r
			}
		}
	}
	a.admitted[p.UID] = p
	return nil
}

// Resize decides whether a pod may have other resources beside all others.
func (a *admission) Resize(_ context.Context, desired *v1.Pod) *pod.Rejection {
	a.mu.Lock()
	defer a.mu.Unlock()
	if node := a.node.get(); node != nil {
		if r := pod.Fit(desired, node, a.others(desired.UID)); r != nil {
			return r
		}
	}
	a.admitted[desired.UID] = desired
	return nil
}

// others are the admitted pods that are not over; a.mu is held.
func (a *admission) others(but types.UID) []*v1.Pod {
	out := make([]*v1.Pod, 0, len(a.admitted))
	for uid, p := range a.admitted {
		phase := p.Status.Phase
		if now, ok := a.state(uid); ok {
			phase = now.Status.Phase // its resources are those promised here
		}
		if uid != but && phase != v1.PodFailed && phase != v1.PodSucceeded {
			out = append(out, p)
		}
	}
	return out
}

// Forget gives back the room of a pod that is gone.
func (a *admission) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.admitted, uid)
	a.drop(uid)
}
