package garbage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var gvr = schema.GroupVersionResource{Version: "v1", Resource: "things"}

// server is an API server's deletion rules over objects in memory; every
// change becomes an event that the graph gets later, in order.
type server struct {
	objs   map[types.UID]*metav1.ObjectMeta
	events []event
	rv     int
}

type event struct {
	id   id
	m    *metav1.ObjectMeta
	gone bool
}

func idOf(m *metav1.ObjectMeta) id { return id{gvr, "ns", m.Name, m.UID} }

func (s *server) changed(m *metav1.ObjectMeta, gone bool) {
	s.rv++
	m.ResourceVersion = fmt.Sprint(s.rv)
	s.events = append(s.events, event{idOf(m), m.DeepCopy(), gone})
}

func (s *server) delete(uid types.UID, policy metav1.DeletionPropagation) {
	m := s.objs[uid]
	if m == nil {
		return
	}
	if m.DeletionTimestamp == nil {
		now := metav1.NewTime(time.Unix(1, 0))
		switch policy {
		case metav1.DeletePropagationForeground:
			m.Finalizers = append(m.Finalizers, metav1.FinalizerDeleteDependents)
		case metav1.DeletePropagationOrphan:
			m.Finalizers = append(m.Finalizers, metav1.FinalizerOrphanDependents)
		}
		if len(m.Finalizers) > 0 {
			m.DeletionTimestamp = &now
			s.changed(m, false)
		}
	}
	s.settle(m)
}

func (s *server) settle(m *metav1.ObjectMeta) {
	if len(m.Finalizers) == 0 {
		delete(s.objs, m.UID)
		s.changed(m, true)
	}
}

func (s *server) perform(g *graph, v verdict, queue *[]types.UID) {
	m := s.objs[v.ID.UID]
	switch v.Act {
	case FindOwners:
		for _, r := range v.Unknown {
			if o := s.objs[r.UID]; o != nil {
				*queue = append(*queue, g.Resolve(idOf(o), o)...)
			} else {
				g.Absent(r.UID)
			}
		}
		*queue = append(*queue, v.ID.UID)
	case Delete:
		if m == nil {
			*queue = append(*queue, g.Removed(v.ID.UID)...)
		} else if m.ResourceVersion == v.Version {
			s.delete(m.UID, v.Policy)
		} else {
			*queue = append(*queue, v.ID.UID)
		}
	case Unreference:
		if m != nil {
			s.unreference(m, v.UIDs)
		}
	case Unblock:
		if m == nil {
			return
		}
		if patch := unblocked(&metav1.PartialObjectMetadata{ObjectMeta: *m}, v.UIDs); patch != nil {
			m.OwnerReferences = *patch.Owners
			s.changed(m, false)
		}
	case Unfinalize:
		s.unfinalize(m, v.Finalizer)
	case OrphanDependents:
		for _, d := range v.Dependents {
			if dm := s.objs[d.UID]; dm != nil {
				s.unreference(dm, []types.UID{v.ID.UID})
			}
		}
		s.unfinalize(m, metav1.FinalizerOrphanDependents)
	case DeleteDependents:
		for _, d := range v.Dependents {
			*queue = append(*queue, d.UID)
		}
	}
}

func (s *server) unreference(m *metav1.ObjectMeta, uids []types.UID) {
	m.OwnerReferences = slices.DeleteFunc(slices.Clone(m.OwnerReferences), func(r metav1.OwnerReference) bool {
		return slices.Contains(uids,
			r.UID)
	})
	s.changed(m, false)
}

func (s *server) unfinalize(m *metav1.ObjectMeta, f string) {
	if m == nil || !slices.Contains(m.Finalizers, f) {
		return
	}
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(x string) bool { return x == f })
	if len(m.Finalizers) == 0 && m.DeletionTimestamp != nil {
		s.settle(m)
		return
	}
	s.changed(m, false)
}

// TestCollectsExactlyTheGarbage makes random forests of owners, deletes at
// random in all three ways, restarts the collector at random, and checks that
// what is left is what should be: nothing whose owners are all gone, and every
// object that has no owners or was orphaned.
func TestCollectsExactlyTheGarbage(t *testing.T) {
	for range 2000 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 3))
		s := &server{objs: map[types.UID]*metav1.ObjectMeta{}}
		g := newGraph()
		g.Synced()
		var queue, all []types.UID
		roots := map[types.UID]bool{}
		deleted := map[types.UID]bool{}
		for step := 0; step < 60 || len(s.events) > 0 || len(queue) > 0; step++ {
			if step > 20000 {
				t.Fatalf("seed %d: does not come to rest", seed)
			}
			switch k := r.IntN(8); {
			case k == 0 && step < 60:
				uid := types.UID(fmt.Sprint("u", len(all)))
				m := &metav1.ObjectMeta{Name: string(uid), Namespace: "ns", UID: uid}
				for range r.IntN(3) {
					if len(all) > 0 {
						o := all[r.IntN(len(all))]
						if om := s.objs[o]; om != nil && om.DeletionTimestamp == nil && !slices.ContainsFunc(m.OwnerReferences,
							func(x metav1.OwnerReference) bool { return x.UID == o }) {
							block := r.IntN(2) == 0
							m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Thing",
								Name: string(o), UID: o, BlockOwnerDeletion: &block})
						}
					}
				}
				roots[uid] = len(m.OwnerReferences) == 0
				all = append(all, uid)
				s.objs[uid] = m
				s.changed(m, false)
			case k == 1 && step < 60 && len(all) > 0:
				uid := all[r.IntN(len(all))]
				deleted[uid] = true
				s.delete(uid, []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
					metav1.DeletePropagationOrphan}[r.IntN(3)])
			case k == 2 && r.IntN(10) == 0: // restart
				g, queue, s.events = newGraph(), nil, nil
				for _, m := range s.objs {
					g.Observe(idOf(m), m)
				}
				queue = append(queue, g.Synced()...)
			case k < 6 && len(s.events) > 0:
				e := s.events[0]
				s.events = s.events[1:]
				if e.gone {
					queue = append(queue, g.Removed(e.id.UID)...)
				} else {
					queue = append(queue, g.Observe(e.id, e.m)...)
				}
			case len(queue) > 0:
				i := r.IntN(len(queue))
				uid := queue[i]
				queue = slices.Delete(queue, i, i+1)
				s.perform(g, g.Plan(uid), &queue)
			}
		}
		for uid, m := range s.objs {
			if m.DeletionTimestamp != nil {
				t.Fatalf("seed %d: %s is stuck being deleted: %+v, plan %+v", seed, uid, m, g.Plan(uid))
			}
			alive := len(m.OwnerReferences) == 0
			for _, o := range m.OwnerReferences {
				if s.objs[o.UID] == nil {
					t.Logf("note: %s still names %s", uid, o.UID)
				} else {
					alive = true
				}
			}
			if !alive {
				t.Fatalf("seed %d: %s has no owner left and was not collected", seed, uid)
			}
		}
		for uid := range roots {
			if roots[uid] && !deleted[uid] && s.objs[uid] == nil {
				t.Fatalf("seed %d: %s had no owner, nobody deleted it, and it is gone", seed, uid)
			}
		}
		if n := g.Len(); n > len(s.objs) {
			t.Fatalf("seed %d: the graph holds %d nodes for %d objects", seed, n, len(s.objs))
		}
	}
}

func TestUnownedObjectsCostNothing(t *testing.T) {
	g := newGraph()
	g.Synced()
	for i := range 1000 {
		m := &metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}
		if look := g.Observe(idOf(m), m); len(look) > 0 {
			t.Fatalf("asked to look at %v", look)
		}
	}
	if g.Len() != 0 {
		t.Fatalf("the graph holds %d nodes", g.Len())
	}
}
