package pod

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Signals reach the pods of an agent from parts that are made before there is a
// Manager: its own collaborators. It is made first of all and given to the
// Manager's Config. Until the Manager is made there are no pods.
type Signals struct{ manager atomic.Pointer[Manager] }

// Enqueue makes a pod's worker look again, for example because a probe has news.
func (s *Signals) Enqueue(uid types.UID) {
	if m := s.manager.Load(); m != nil {
		m.Enqueue(uid)
	}
}

// Retry makes a pod's worker try now what failed before.
func (s *Signals) Retry(uid types.UID) {
	if m := s.manager.Load(); m != nil {
		m.Retry(uid)
	}
}

// RuntimeChanged tells that the runtime's picture of a pod changed.
func (s *Signals) RuntimeChanged(uid types.UID) {
	if m := s.manager.Load(); m != nil {
		m.RuntimeChanged(uid)
	}
}

// Kill ends a pod for a reason of the node; nil when there is no such pod.
func (s *Signals) Kill(uid types.UID, k Kill) <-chan struct{} {
	if m := s.manager.Load(); m != nil {
		return m.Kill(uid, k)
	}
	return nil
}

// Terminated returns a channel that is closed once nothing runs any more of a pod that
// no source has; nil for all others.
func (s *Signals) Terminated(uid types.UID) <-chan struct{} {
	if m := s.manager.Load(); m != nil {
		return m.Terminated(uid)
	}
	return nil
}

// Reported returns a channel that is closed once the API knows how the pod ended;
// nil when there is no such pod.
func (s *Signals) Reported(uid types.UID) <-chan struct{} {
	if m := s.manager.Load(); m != nil {
		return m.Reported(uid)
	}
	return nil
}

// List returns all pods with their present status.
func (s *Signals) List() []*v1.Pod {
	if m := s.manager.Load(); m != nil {
		return m.List()
	}
	return nil
}

// Get returns one pod with its present status.
func (s *Signals) Get(uid types.UID) (*v1.Pod, bool) {
	if m := s.manager.Load(); m != nil {
		return m.Get(uid)
	}
	return nil, false
}
