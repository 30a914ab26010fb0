// Package faulttest holds the fault-injection tests of the node controllers'
// shells: it tries them, as production runs them, on random histories: all of
// them together against an API that is slow, loses answers and watches, and
// goes away, with crashes between any two writes. It runs in virtual time and
// has tests only.
package faulttest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
)

// kind is a resource that the API serves.
type kind string

const (
	nodes  kind = "nodes"
	pods   kind = "pods"
	leases kind = "leases"
)

func (k kind) resource() schema.GroupResource { return schema.GroupResource{Resource: string(k)} }

func (k kind) empty() object {
	switch k {
	case nodes:
		return &v1.Node{}
	case pods:
		return &v1.Pod{}
	}
	return &coordination.Lease{}
}

type object interface {
	metav1.Object
	runtime.Object
}

// store is an API server's memory. Objects in it never change: a write puts
// another in their place.
type store struct {
	mu      sync.Mutex
	r       *rand.Rand
	version uint64
	objects map[kind]map[string]object
	streams map[*stream]bool
	past    []change
	down    bool // no one gets an answer
	slow    bool // answers and watches take up to seconds
	lossy   bool // some answers are errors, some writes are done and said to have failed
	// changed is told of each write, with the store locked: by is the instance whose
	// write it is, nil for the world's.
	changed func(k kind, old, now object, by *instance)
}

// change is a write that was made.
type change struct {
	kind    kind
	version uint64
	event   watch.Event
}

func newStore(r *rand.Rand) *store {
	return &store{r: r, version: 1, streams: map[*stream]bool{}, objects: map[kind]map[string]object{nodes: {}, pods: {}, leases: {}}}
}

// latency is how long an answer or an event takes; the store is locked.
func (s *store) latency() time.Duration {
	if s.slow {
		return time.Duration(s.r.Int64N(int64(2 * time.Second)))
	}
	return time.Duration(s.r.Int64N(int64(10 * time.Millisecond)))
}

func (s *store) get(k kind, name string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k][name]
}

// put writes an object, or its deletion if now is nil; the store is locked.
func (s *store) put(k kind, name string, now object, by *instance) {
	old := s.objects[k][name]
	s.version++
	event := watch.Event{Type: watch.Modified}
	switch {
	case now == nil:
		delete(s.objects[k], name)
		gone := old.DeepCopyObject().(object)
		gone.SetResourceVersion(strconv.FormatUint(s.version, 10))
		event = watch.Event{Type: watch.Deleted, Object: gone}
	default:
		now.SetResourceVersion(strconv.FormatUint(s.version, 10))
		s.objects[k][name] = now
		event.Object = now
		if old == nil {
			event.Type = watch.Added
		}
	}
	s.past = append(s.past, change{k, s.version, event})
	for st := range s.streams {
		if st.kind == k {
			st.add(event)
		}
	}
	if s.changed != nil {
		s.changed(k, old, now, by)
	}
}

// edit changes an object if it is there.
func (s *store) edit(k kind, name string, change func(object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.objects[k][name]; old != nil {
		now := old.DeepCopyObject().(object)
		change(now)
		s.put(k, name, now, nil)
	}
}

// patch is the API's PATCH; what it writes is by someone's order.
func (s *store) patch(k kind, name string, how types.PatchType, body []byte, by *instance) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[k][name]
	if old == nil {
		return nil, apierrors.NewNotFound(k.resource(), name)
	}
	var ask struct {
		Metadata struct{ UID, ResourceVersion string }
		Spec     struct{ PodCIDR string }
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	m := ask.Metadata
	if m.UID != "" && m.UID != string(old.GetUID()) || m.ResourceVersion != "" && m.ResourceVersion != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(k.resource(), name, fmt.Errorf("it is another by now"))
	}
	if n, ok := old.(*v1.Node); ok && ask.Spec.PodCIDR != "" && n.Spec.PodCIDR != "" && n.Spec.PodCIDR != ask.Spec.PodCIDR {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, name, nil)
	}
	from, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var to []byte
	if how == types.StrategicMergePatchType {
		to, err = strategicpatch.StrategicMergePatch(from, body, k.empty())
	} else {
		to, err = jsonpatch.MergePatch(from, body)
	}
	if err != nil {
		return nil, err
	}
	now := k.empty()
	if err := json.Unmarshal(to, now); err != nil {
		return nil, err
	}
	s.put(k, name, now, by)
	return now, nil
}

// remove is the API's DELETE. A pod with grace only begins to end.
func (s *store) remove(k kind, name string, opts metav1.DeleteOptions, by *instance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[k][name]
	if old == nil {
		return apierrors.NewNotFound(k.resource(), name)
	}
	if p := opts.Preconditions; p != nil && p.UID != nil && *p.UID != old.GetUID() {
		return apierrors.NewConflict(k.resource(), name, fmt.Errorf("it is another by now"))
	}
	if pod, ok := old.(*v1.Pod); ok && (opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds > 0) {
		if pod.DeletionTimestamp == nil {
			pod = pod.DeepCopy()
			now, grace := metav1.Now(), int64(30)
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
			s.put(k, name, pod, by)
		}
		return nil
	}
	s.put(k, name, nil, by)
	return nil
}

// list is everything of a kind, and the version of the whole.
func (s *store) list(k kind) (out []object, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range sortedKeys(s.objects[k]) {
		out = append(out, s.objects[k][name])
	}
	return out, strconv.FormatUint(s.version, 10)
}

// stream is one watch: events arrive in order, late, and now and then twice.
type stream struct {
	store *store
	kind  kind
	out   chan watch.Event
	wake  chan struct{}
	ended chan struct{}
	end   func()
	// the store's lock guards what follows
	queue []late
	last  time.Time
	deaf  bool // a connection that is dead and does not know it
}

type late struct {
	at    time.Time
	event watch.Event
}

// watch begins after a version; now and then it is too old, and who asked has to
// list again.
func (s *store) watch(k kind, version string, limit time.Duration) watch.Interface {
	st := &stream{store: s, kind: k, out: make(chan watch.Event), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	st.end = sync.OnceFunc(func() { close(st.ended) })
	s.mu.Lock()
	defer s.mu.Unlock()
	from, err := strconv.ParseUint(version, 10, 64)
	if err != nil || s.r.IntN(10) == 0 {
		gone := apierrors.NewResourceExpired("too old")
		st.queue = []late{{time.Now(), watch.Event{Type: watch.Error, Object: &gone.ErrStatus}}}
	} else {
		for _, e := range s.past {
			if e.kind == k && e.version > from {
				st.queue = append(st.queue, late{time.Now(), e.event})
			}
		}
	}
	s.streams[st] = true
	go st.pump(limit)
	return st
}

func (st *stream) ResultChan() <-chan watch.Event { return st.out }
func (st *stream) Stop()                          { st.end() }

// add queues an event; the store is locked.
func (st *stream) add(e watch.Event) {
	if st.deaf {
		return
	}
	at := time.Now().Add(st.store.latency())
	if at.Before(st.last) {
		at = st.last
	}
	st.last = at
	st.queue = append(st.queue, late{at, e})
	if e.Type == watch.Modified && st.store.r.IntN(20) == 0 {
		st.queue = append(st.queue, late{at, e})
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// next is the first event of the queue, if there is one.
func (st *stream) next() (l late, ok bool) {
	st.store.mu.Lock()
	defer st.store.mu.Unlock()
	if len(st.queue) == 0 {
		return late{}, false
	}
	l = st.queue[0]
	st.queue = st.queue[1:]
	return l, true
}

func (st *stream) pump(limit time.Duration) {
	defer close(st.out)
	defer func() {
		st.store.mu.Lock()
		defer st.store.mu.Unlock()
		delete(st.store.streams, st)
	}()
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		l, ok := st.next()
		if !ok {
			select {
			case <-st.wake:
			case <-over.C:
				return
			case <-st.ended:
				return
			}
			continue
		}
		timer := time.NewTimer(time.Until(l.at))
		select {
		case <-timer.C:
		case <-st.ended:
			timer.Stop()
			return
		}
		select {
		case st.out <- l.event:
		case <-st.ended:
			return
		}
	}
}

// cut makes the watches of a kind deaf, mend ends those that are.
func (s *store) cut(k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.kind == k {
			st.deaf, st.queue = true, nil
		}
	}
}

func (s *store) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.deaf {
			st.end()
		}
	}
}

// setDown takes the API away, or gives it back: its watches end with it.
func (s *store) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	for st := range s.streams {
		st.deaf, st.queue = true, nil
		st.end()
	}
}

func nodeOfPod(name string) string {
	node, _, _ := strings.Cut(name, "-")
	return node
}
