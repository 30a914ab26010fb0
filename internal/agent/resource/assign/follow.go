package assign

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Running is one running container.
type Running struct {
	Pod  types.UID
	Name string
	ID   string
}

// Follower keeps running containers where they belong: when the shared
// CPUs change, everybody who owns none moves.
type Follower struct {
	Manager *Manager
	// Period is how often everything is looked at without a reason.
	Period time.Duration
	// Ready is closed once all pods of the node are known: before that no one
	// can be known to be gone.
	Ready <-chan struct{}
	// Keep tells whether a pod still needs what it has.
	Keep func(types.UID) bool
	// Running lists the running containers; Changed is closed when the list may
	// have.
	Running func() []Running
	Changed func() <-chan struct{}
	// Move sets the CPUs of a running container.
	Move func(ctx context.Context, id, cpus string) error
}

// Run works until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-f.Ready:
	}
	at := map[string]string{} // CPUs by container ID, as last set
	ticker := time.NewTicker(f.Period)
	defer ticker.Stop()
	for {
		// Taken before looking, so that a change in between is not missed.
		shared, containers := f.Manager.Changed(), f.Changed()
		f.pass(ctx, at)
		select {
		case <-ctx.Done():
			return nil
		case <-shared:
		case <-containers:
		case <-ticker.C:
			clear(at) // another party may have moved them
		}
	}
}

func (f *Follower) pass(ctx context.Context, at map[string]string) {
	log := f.Manager.cfg.Log
	if err := f.Manager.Keep(f.Keep); err != nil {
		log.Warn("taking back processors and memory of pods that are over", "err", err)
	}
	if f.Manager.cfg.CPUs == nil {
		return
	}
	seen := map[string]bool{}
	for _, c := range f.Running() {
		seen[c.ID] = true
		place := f.Manager.Of(c.Pod, c.Name)
		if place.CPUs == "" || at[c.ID] == place.CPUs {
			continue
		}
		if err := f.Move(ctx, c.ID, place.CPUs); err != nil {
			if ctx.Err() == nil {
				log.Warn("setting the processors of a container", "pod", c.Pod, "container", c.Name, "cpus", place.CPUs, "err", err)
			}
			continue
		}
		at[c.ID] = place.CPUs
	}
	for id := range at {
		if !seen[id] {
			delete(at, id)
		}
	}
}
