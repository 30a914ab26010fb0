package podcontrol

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// overlayKeeps is how long a write may be missing from the cache before the
// cache is believed instead.
const overlayKeeps = 5 * time.Minute

// Overlay remembers pods this process created or deleted until the cache shows
// it, so that a planner never acts twice on a stale cache.
type Overlay struct {
	mu      sync.Mutex
	created map[types.UID]map[types.UID]overlaid // owner -> pod
	deleted map[types.UID]time.Time
}

type overlaid struct {
	pod *v1.Pod
	at  time.Time
}

// newOverlay returns an empty memory.
func newOverlay() *Overlay {
	return &Overlay{created: map[types.UID]map[types.UID]overlaid{}, deleted: map[types.UID]time.Time{}}
}

// Created remembers a pod as the API server returned it.
func (o *Overlay) Created(owner types.UID, pod *v1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.created[owner] == nil {
		o.created[owner] = map[types.UID]overlaid{}
	}
	o.created[owner][pod.UID] = overlaid{pod, time.Now()}
}

// Deleted remembers that a delete of the pod was accepted.
func (o *Overlay) Deleted(pod *v1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted[pod.UID] = time.Now()
}

// Seen takes note of a pod event from the cache.
func (o *Overlay) Seen(pod *v1.Pod, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.created) > 0 {
		for owner, pods := range o.created {
			delete(pods, pod.UID)
			if len(pods) == 0 {
				delete(o.created, owner)
			}
		}
	}
	if gone || pod.DeletionTimestamp != nil {
		delete(o.deleted, pod.UID)
	}
}

// Merge returns the cached pods of an owner with this process's own writes
// applied: pods it created added, pods it deleted shown as being deleted.
func (o *Overlay) Merge(owner types.UID, cached []*v1.Pod) []*v1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	out := make([]*v1.Pod, 0, len(cached))
	for _, p := range cached {
		delete(o.created[owner], p.UID)
		out = append(out, o.dying(p, now))
	}
	for uid, c := range o.created[owner] {
		if now.Sub(c.at) > overlayKeeps {
			delete(o.created[owner], uid)
			continue
		}
		out = append(out, o.dying(c.pod, now))
	}
	return out
}

func (o *Overlay) dying(p *v1.Pod, now time.Time) *v1.Pod {
	at, ok := o.deleted[p.UID]
	if !ok {
		return p
	}
	if p.DeletionTimestamp != nil || now.Sub(at) > overlayKeeps {
		delete(o.deleted, p.UID)
		return p
	}
	p = p.DeepCopy()
	p.DeletionTimestamp = &metav1.Time{Time: at}
	return p
}

// Forget drops what is remembered of an owner that no longer exists.
func (o *Overlay) Forget(owner types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.created, owner)
}
