package image

import (
	"context"
	"sync"
)

// slots bounds pulls at a time and hands free slots to registries in turn, so
// that a slow registry with a long queue cannot starve the others. One
// registry may use all slots while no one else wants them; when others wait,
// it gets no new slot before they do.
type slots struct {
	mu   sync.Mutex
	free int
	// order is the registries with waiters, next to serve first.
	order   []string
	waiters map[string][]chan struct{}
	active  map[string]int
}

func newSlots(n int) *slots {
	return &slots{free: n, waiters: map[string][]chan struct{}{}, active: map[string]int{}}
}

// acquire waits for a slot. release must be called once.
func (s *slots) acquire(ctx context.Context, registry string) (release func(), err error) {
	s.mu.Lock()
	if s.free > 0 && len(s.order) == 0 {
		s.free--
		s.active[registry]++
		s.mu.Unlock()
		return s.releaser(registry), nil
	}
	ready := make(chan struct{})
	if len(s.waiters[registry]) == 0 {
		s.order = append(s.order, registry)
	}
	s.waiters[registry] = append(s.waiters[registry], ready)
	s.mu.Unlock()
	select {
	case <-ready:
		return s.releaser(registry), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.waiters[registry] {
		if w == ready {
			s.waiters[registry] = append(s.waiters[registry][:i], s.waiters[registry][i+1:]...)
			s.trim(registry)
			return nil, ctx.Err()
		}
	}
	// Granted in the same moment: pass it on.
	s.put(registry)
	return nil, ctx.Err()
}

func (s *slots) releaser(registry string) func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.put(registry)
		})
	}
}

// put frees a slot and grants it: to the waiting registry with the fewest
// pulls running, the longest waiting one among equals.
func (s *slots) put(registry string) {
	if s.active[registry]--; s.active[registry] == 0 {
		delete(s.active, registry)
	}
	s.free++
	if len(s.order) == 0 {
		return
	}
	best := 0
	for i, r := range s.order {
		if s.active[r] < s.active[s.order[best]] {
			best = i
		}
	}
	next := s.order[best]
	// To the end of the line; trim drops it when no one is left.
	s.order = append(append(s.order[:best:best], s.order[best+1:]...), next)
	ready := s.waiters[next][0]
	s.waiters[next] = s.waiters[next][1:]
	s.trim(next)
	s.free--
	s.active[next]++
	close(ready)
}

// trim forgets a registry without waiters.
func (s *slots) trim(registry string) {
	if len(s.waiters[registry]) > 0 {
		return
	}
	delete(s.waiters, registry)
	for i, r := range s.order {
		if r == registry {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			return
		}
	}
}
