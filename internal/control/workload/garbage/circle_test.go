package garbage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestCirclesGo: objects that own each other in a ring, with others hanging
// from it, all go when one is deleted with its dependents first, in whatever
// order the news comes and even if the collector is restarted on the way.
func TestCirclesGo(t *testing.T) {
	for range 500 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 5))
		s := &server{objs: map[types.UID]*metav1.ObjectMeta{}}
		ring, rest := 2+r.IntN(4), r.IntN(3)
		for i := range ring + rest {
			owner := r.IntN(ring)
			if i < ring {
				owner = (i + 1) % ring
			}
			block := i < ring || r.IntN(2) == 0
			uid := types.UID(fmt.Sprint("u", i))
			s.objs[uid] = &metav1.ObjectMeta{Name: string(uid), Namespace: "ns", UID: uid, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Thing", Name: fmt.Sprint("u", owner), UID: types.UID(fmt.Sprint("u", owner)),
					BlockOwnerDeletion: &block}}}
			s.changed(s.objs[uid], false)
		}
		g := newGraph()
		g.Synced()
		var queue []types.UID
		s.delete(types.UID(fmt.Sprint("u", r.IntN(ring))), metav1.DeletePropagationForeground)
		for step := 0; len(s.events) > 0 || len(queue) > 0; step++ {
			if step > 5000 {
				t.Fatalf("seed %d: does not come to rest", seed)
			}
			switch {
			case r.IntN(40) == 0 && step < 200: // restart
				g, queue, s.events = newGraph(), nil, nil
				for _, m := range s.objs {
					g.Observe(idOf(m), m)
				}
				queue = g.Synced()
			case len(s.events) > 0 && (r.IntN(2) == 0 || len(queue) == 0):
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
			t.Fatalf("seed %d: %s of a ring of %d is left: %+v, plan %+v", seed, uid, ring, m, g.Plan(uid))
		}
	}
}
