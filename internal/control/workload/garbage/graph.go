// Package garbage deletes objects whose owners are gone, and carries out
// foreground and orphaning deletion.
//
// It keeps no copy of the cluster: the graph holds a small node only for
// objects that have owners, are owned, or are being deleted in one of the two
// ways above. It is fed by the informers that other controllers share anyway,
// and by bare metadata watches, without a store, for every other resource.
package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// id names an object.
type id struct {
	Resource  schema.GroupVersionResource
	Namespace string
	Name      string
	UID       types.UID
}

// node is what the graph knows of one object.
type node struct {
	id
	// seen says that an event showed it; otherwise only a dependent told us.
	seen bool
	// gone says that it was deleted or never there: a UID never comes back.
	gone    bool
	version string
	owners  []metav1.OwnerReference
	// dependents are the objects that name this one as an owner.
	dependents map[types.UID]*node
	deleting   bool
	foreground bool // finalizer foregroundDeletion is set
	orphan     bool // finalizer orphan is set
}

// graph is the owner graph. It is pure: events go in, IDs to look at come out.
type graph struct {
	nodes map[types.UID]*node
	// keepAll holds while the first listings run: an owner may be listed
	// before its dependents.
	keepAll bool
}

// newGraph returns an empty graph that keeps everything until Settled.
func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}, keepAll: true} }

// Len returns how many objects the graph holds.
func (g *graph) Len() int { return len(g.nodes) }

// Synced marks the graph as complete: every object was observed once. It drops objects
// without owners or dependents and returns those to process: objects with an owner
// that was never observed, and objects being deleted.
func (g *graph) Synced() (look []types.UID) {
	g.keepAll = false
	for uid, n := range g.nodes {
		if g.undecided(n) {
			look = append(look, uid)
		}
	}
	for _, n := range g.nodes {
		g.drop(n)
	}
	return look
}

// undecided says whether there is something to find out about a fresh node.
func (g *graph) undecided(n *node) bool {
	if n.deleting && (n.foreground || n.orphan) {
		return true
	}
	for _, r := range n.owners {
		if o := g.nodes[r.UID]; o == nil || !o.seen {
			return true
		}
	}
	return false
}

// Observe takes note of an object as an event showed it and returns what to
// look at because of it.
func (g *graph) Observe(id id, m metav1.Object) (look []types.UID) {
	n := g.nodes[id.UID]
	if n == nil {
		n = &node{id: id}
		g.nodes[id.UID] = n
	}
	wasDying := n.deleting
	first := !n.seen
	n.id, n.seen, n.version = id, true, m.GetResourceVersion()
	n.deleting = m.GetDeletionTimestamp() != nil
	n.foreground = slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
	n.orphan = slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents)
	waiting := g.waitingOwners(n)
	changed := g.setOwners(n, m.GetOwnerReferences())
	if n.deleting && (n.foreground || n.orphan) && (!wasDying || first) {
		look = append(look, id.UID)
	}
	if len(n.owners) > 0 && (changed || first || (n.deleting && n.foreground)) && !g.keepAll {
		look = append(look, id.UID)
	}
	// A dependent that stops blocking may free its owners.
	if changed || (n.deleting && !wasDying) {
		look = append(append(look, waiting...), g.waitingOwners(n)...)
	}
	if !g.keepAll {
		g.drop(n)
	}
	return look
}

// setOwners replaces an object's owners; it says whether they changed.
func (g *graph) setOwners(n *node, refs []metav1.OwnerReference) bool {
	if slices.EqualFunc(n.owners, refs, sameRef) {
		return false
	}
	old := n.owners
	n.owners = slices.Clone(refs)
	for _, r := range refs {
		o := g.nodes[r.UID]
		if o == nil {
			// Known by hearsay only: where it is is found out when needed.
			o = &node{id: id{Name: r.Name, Namespace: n.Namespace, UID: r.UID}}
			g.nodes[r.UID] = o
		}
		if o.dependents == nil {
			o.dependents = map[types.UID]*node{}
		}
		o.dependents[n.UID] = n
	}
	for _, r := range old {
		if !slices.ContainsFunc(refs, func(x metav1.OwnerReference) bool { return x.UID == r.UID }) {
			g.unlink(n, r.UID)
		}
	}
	return true
}

func sameRef(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion &&
		blocks(a) == blocks(b)
}

func blocks(r metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

func (g *graph) unlink(n *node, owner types.UID) {
	if o := g.nodes[owner]; o != nil {
		delete(o.dependents, n.UID)
		g.drop(o)
	}
}

// Removed removes an object from the graph. It returns the objects to process: its
// dependents, and owners that waited for it.
func (g *graph) Removed(uid types.UID) (look []types.UID) {
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	look = g.waitingOwners(n)
	for d := range n.dependents {
		look = append(look, d)
	}
	for _, r := range n.owners {
		g.unlink(n, r.UID)
	}
	n.owners, n.seen, n.gone = nil, false, true
	if len(n.dependents) == 0 {
		delete(g.nodes, uid)
	} else {
		n.deleting, n.foreground, n.orphan = false, false, false
	}
	return look
}

// waitingOwners lists the owners whose foreground deletion waits for n.
func (g *graph) waitingOwners(n *node) (out []types.UID) {
	for _, r := range n.owners {
		if o := g.nodes[r.UID]; o != nil && o.deleting && o.foreground {
			out = append(out, o.UID)
		}
	}
	return out
}

// drop forgets an object that is outside any ownership.
func (g *graph) drop(n *node) {
	if !g.keepAll && len(n.owners) == 0 && len(n.dependents) == 0 && !(n.deleting && (n.foreground || n.orphan)) {
		delete(g.nodes, n.UID)
	}
}
