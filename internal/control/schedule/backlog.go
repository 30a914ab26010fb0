package schedule

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/heap"
)

// change is a kind of event that may make room for a waiting pod.
type change uint8

const (
	nodeChanged change = 1 << iota
	podGone
	podAdded // matters to pods that want company
	volumeChanged
	deviceChanged // slices, classes and resource claims
)

// Back-off between attempts for one pod, and how long a pod waits at most
// without any event that might help it.
const (
	backoffFirst = time.Second
	backoffMost  = 10 * time.Second
	parkedMost   = 5 * time.Minute
)

// backlog holds the pods to place: ready ones by priority and age, backing-off
// ones by time, parked ones until something changes. It is pure; time comes in.
type backlog struct {
	items map[types.UID]*waiting
	ready *heap.Heap[*waiting]
	later *heap.Heap[*waiting]
	seq   uint64
}

type waiting struct {
	pod      *place.Pod
	seq      uint64
	added    time.Time
	attempts int
	// parked says that it waits for one of the events in wakes; not before
	// says when it may be tried again, whatever happens.
	parked    bool
	wakes     change
	notBefore time.Time
	deadline  time.Time // in later
	inReady   heap.Place
	inLater   heap.Place
}

func newBacklog() *backlog {
	byPriority := func(a, b *waiting) bool {
		if a.pod.Priority != b.pod.Priority {
			return a.pod.Priority > b.pod.Priority
		}
		return a.seq < b.seq
	}
	return &backlog{
		items: map[types.UID]*waiting{},
		ready: heap.New(byPriority, func(w *waiting) *heap.Place { return &w.inReady }),
		later: heap.New(func(a, b *waiting) bool { return a.deadline.Before(b.deadline) },
			func(w *waiting) *heap.Place { return &w.inLater }),
	}
}

// add puts a pod up for placement, or renews the object of a waiting one.
// A changed spec, or claims made for it, are worth an attempt.
func (b *backlog) add(p *place.Pod, now time.Time) {
	if w := b.items[p.Obj.UID]; w != nil {
		spec := w.pod.Obj.Generation != p.Obj.Generation || w.pod.Obj.ResourceVersion == "" ||
			len(w.pod.Obj.Spec.SchedulingGates) != len(p.Obj.Spec.SchedulingGates) ||
			!resourceclaim.PodStatusEqual(w.pod.Obj.Status.ResourceClaimStatuses, p.Obj.Status.ResourceClaimStatuses)
		w.pod = p
		if spec && w.parked {
			b.activate(w, now)
		}
		return
	}
	b.seq++
	w := &waiting{pod: p, seq: b.seq, added: now}
	b.items[p.Obj.UID] = w
	b.ready.Put(w)
}

func (b *backlog) remove(uid types.UID) {
	w := b.items[uid]
	if w == nil {
		return
	}
	delete(b.items, uid)
	b.unlink(w)
}

func (b *backlog) unlink(w *waiting) {
	b.ready.Remove(w)
	b.later.Remove(w)
}

// pop takes the most important pod that may be tried now. The pod stays known
// until remove; the caller must call failed or remove for it.
func (b *backlog) pop(now time.Time) *waiting {
	for b.later.Len() > 0 && !b.later.First().deadline.After(now) {
		w := b.later.Pop()
		w.parked = false
		b.ready.Put(w)
	}
	if b.ready.Len() == 0 {
		return nil
	}
	w := b.ready.Pop()
	w.attempts++
	return w
}

// next returns the next deadline; ok is false when only events can help.
func (b *backlog) next() (at time.Time, ok bool) {
	if b.later.Len() == 0 {
		return time.Time{}, false
	}
	return b.later.First().deadline, true
}

// failed puts a popped pod back. With wakes it is parked until one of those
// events (and its back-off) has passed; with none it is retried after back-off.
func (b *backlog) failed(w *waiting, wakes change, now time.Time) {
	if b.items[w.pod.Obj.UID] != w {
		return // removed meanwhile
	}
	b.unlink(w)
	w.notBefore = now.Add(controller.Backoff{First: backoffFirst, Most: backoffMost}.Delay(w.attempts))
	if wakes != 0 && wakes&^(volumeChanged|deviceChanged) == 0 {
		// It waits for its claims alone, which costs next to nothing to check:
		// no reason to keep it waiting once they are bound.
		w.notBefore = now
	}
	w.deadline = w.notBefore
	w.parked, w.wakes = wakes != 0, wakes
	if w.parked {
		w.deadline = now.Add(parkedMost)
	}
	b.later.Put(w)
}

// happened wakes the parked pods an event may help. It returns how many.
func (b *backlog) happened(c change, now time.Time) int {
	n := 0
	for _, w := range b.items {
		if w.parked && w.wakes&c != 0 {
			b.activate(w, now)
			n++
		}
	}
	return n
}

// activate moves a parked pod to the active queue, or to the backoff queue while its
// backoff lasts.
func (b *backlog) activate(w *waiting, now time.Time) {
	w.parked = false
	b.unlink(w)
	if w.notBefore.After(now) {
		w.deadline = w.notBefore
		b.later.Put(w)
		return
	}
	b.ready.Put(w)
}

// wakes says which events may help a pod that could not be placed.
func wakes(pod *v1.Pod, d *place.Decision) change {
	c := nodeChanged | podGone
	if len(pod.Spec.ResourceClaims) > 0 {
		c |= deviceChanged
	}
	if d.Everywhere != "" {
		return c&deviceChanged | volumeChanged
	}
	if len(pod.Spec.Volumes) > 0 {
		c |= volumeChanged
	}
	if pod.Spec.Affinity != nil || len(pod.Spec.TopologySpreadConstraints) > 0 {
		c |= podAdded
	}
	return c
}
