package garbage

import (
	"slices"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// act is what to do about one object.
type act string

// The acts of a Verdict.
const (
	Nothing act = ""
	// FindOwners: read the owners in Unknown live, tell Resolve, plan again.
	FindOwners act = "find owners"
	// Delete the object with the Policy.
	Delete act = "delete"
	// Unreference: remove the owner references in UIDs from the object.
	Unreference act = "unreference"
	// Unblock: let the owners in UIDs not wait for the object any more.
	Unblock act = "unblock"
	// Unfinalize: remove the Finalizer from the object.
	Unfinalize act = "unfinalize"
	// OrphanDependents: remove references to the object from Dependents, then
	// its orphan finalizer.
	OrphanDependents act = "orphan dependents"
	// DeleteDependents: look at each of Dependents.
	DeleteDependents act = "delete dependents"
)

// verdict is the plan for one object.
type verdict struct {
	Act        act
	ID         id
	Version    string
	Unknown    []metav1.OwnerReference
	Policy     metav1.DeletionPropagation
	UIDs       []types.UID
	Finalizer  string
	Dependents []id
}

// Plan says what to do about an object now.
func (g *graph) Plan(uid types.UID) verdict {
	n := g.nodes[uid]
	if n == nil || !n.seen {
		return verdict{}
	}
	v := verdict{ID: n.id, Version: n.version}
	switch {
	case n.deleting && n.orphan:
		v.Act, v.Dependents = OrphanDependents, ids(n, nil)
		return v
	case n.deleting && n.foreground:
		blocking := func(d *node) bool {
			for _, r := range d.owners {
				if r.UID == n.UID && blocks(r) {
					return true
				}
			}
			return false
		}
		if len(ids(n, blocking)) == 0 {
			v.Act, v.Finalizer = Unfinalize, metav1.FinalizerDeleteDependents
			return v
		}
		if v.UIDs = ownersInCycle(n); len(v.UIDs) > 0 {
			v.Act = Unblock
			return v
		}
		v.Act, v.Dependents = DeleteDependents, ids(n, nil)
		return v
	case n.deleting || len(n.owners) == 0:
		return verdict{}
	}
	return g.decide(n, v)
}

// ownersInCycle returns the owners of n that wait for n while n waits for them, directly
// or through others: no object of such a cycle would ever be deleted. The last object
// of the cycle to be deleted sees all of it.
func ownersInCycle(n *node) (owners []types.UID) {
	met := map[*node]bool{n: true}
	for next := []*node{n}; len(next) > 0; {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		for _, d := range at.dependents {
			if !d.seen || !d.deleting || !d.foreground || !slices.ContainsFunc(d.owners,
				func(r metav1.OwnerReference) bool { return r.UID == at.UID && blocks(r) }) {
				continue
			}
			if d == n {
				owners = append(owners, at.UID)
			}
			if !met[d] {
				met[d] = true
				next = append(next, d)
			}
		}
	}
	slices.Sort(owners)
	return owners
}

// decide decides about an object by the state of its owners.
func (g *graph) decide(n *node, v verdict) verdict {
	var solid, dangling, waiting []types.UID
	for _, r := range n.owners {
		o := g.nodes[r.UID]
		switch {
		case o != nil && o.gone:
			dangling = append(dangling, r.UID)
		case o == nil || !o.seen:
			v.Unknown = append(v.Unknown, r)
		case o.deleting && o.foreground:
			waiting = append(waiting, r.UID)
		default:
			solid = append(solid, r.UID)
		}
	}
	switch {
	case len(v.Unknown) > 0:
		v.Act = FindOwners
	case len(solid) > 0:
		if v.UIDs = append(dangling, waiting...); len(v.UIDs) > 0 {
			v.Act = Unreference
		}
	case len(waiting) > 0 && len(n.dependents) > 0:
		// Its own dependents go before it, as its owner's do.
		v.Act, v.Policy = Delete, metav1.DeletePropagationForeground
	default:
		v.Act, v.Policy = Delete, metav1.DeletePropagationBackground
		if n.orphan {
			v.Policy = metav1.DeletePropagationOrphan
		} else if n.foreground {
			v.Policy = metav1.DeletePropagationForeground
		}
	}
	return v
}

// Resolve records that a live read found an owner, and returns what to look at
// because of it. Later events keep it right.
func (g *graph) Resolve(id id, m metav1.Object) (look []types.UID) { return g.Observe(id, m) }

// Absent records that a live read found no such owner.
func (g *graph) Absent(uid types.UID) {
	if n := g.nodes[uid]; n != nil && !n.seen {
		n.gone = true
	}
}

func ids(n *node, only func(*node) bool) (out []id) {
	for _, d := range n.dependents {
		if d.seen && (only == nil || only(d)) {
			out = append(out, d.id)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].UID < out[j].UID })
	return out
}
