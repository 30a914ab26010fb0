// Package nodeauthz decides what a node may do: read what the pods on it
// refer to, and write what is its own.
//
// Graph is the pure core that knows which node holds what; Authorizer is the
// shell that feeds it from informers and answers requests.
package nodeauthz

import (
	"maps"
	"slices"

	"github.com/berth-dev/berth/internal/control/auth/podref"
)

// graph knows, for every object, which nodes may reach it and how many times
// over. It holds the answer itself and not the edges to search, so a question
// costs one lookup and a change costs only what it touches. It is plain data:
// not safe for concurrent use.
//
// Node N reaches object O when a pod on N refers to O, when O is the volume
// bound to a claim that N reaches, or a secret of such a volume.
type graph struct {
	pods    map[podKey]podEntry
	volumes map[string]volumeEntry
	// byClaim finds the volumes bound to a claim.
	byClaim map[podref.Ref]map[string]struct{}
	// holders counts the ways in which each node reaches each object; no
	// count is zero.
	holders map[podref.Ref]map[string]int
	// owned maps volume attachments, resource slices and certificate
	// requests of pods to their node.
	owned map[owned]string
	// gained collects nodes that came to reach something new.
	gained map[string]struct{}
}

// podKey names a pod.
type podKey struct{ Namespace, Name string }

// owned names an object that says itself which node it is for.
type owned struct {
	Kind ownedKind
	Name string
}

// ownedKind is a kind whose objects name their node.
type ownedKind uint8

const (
	Attachment ownedKind = iota + 1
	Slice
	// PodCertificate is a PodCertificateRequest, named namespace/name.
	PodCertificate
)

type podEntry struct {
	node string
	refs []podref.Ref
}

type volumeEntry struct {
	claim   podref.Ref
	secrets []podref.Ref
}

// newGraph returns an empty Graph.
func newGraph() *graph {
	return &graph{
		pods: map[podKey]podEntry{}, volumes: map[string]volumeEntry{},
		byClaim: map[podref.Ref]map[string]struct{}{}, holders: map[podref.Ref]map[string]int{},
		owned: map[owned]string{}, gained: map[string]struct{}{},
	}
}

// SetPod records that a pod runs on node and refers to refs. A pod that is on
// no node yet gives access to nothing.
func (g *graph) SetPod(key podKey, node string, refs []podref.Ref) {
	old, known := g.pods[key]
	if known && old.node == node && slices.Equal(old.refs, refs) {
		return
	}
	// Add before removing, so that what both hold never drops to zero.
	if node != "" {
		g.pods[key] = podEntry{node, refs}
		g.gained[node] = struct{}{}
		for _, ref := range refs {
			g.hold(ref, node)
		}
	} else {
		delete(g.pods, key)
	}
	for _, ref := range old.refs {
		g.drop(ref, old.node)
	}
}

// DeletePod forgets a pod.
func (g *graph) DeletePod(key podKey) { g.SetPod(key, "", nil) }

func (g *graph) hold(ref podref.Ref, node string) {
	nodes := g.holders[ref]
	if nodes == nil {
		nodes = map[string]int{}
		g.holders[ref] = nodes
	}
	nodes[node]++
	if nodes[node] > 1 {
		return
	}
	g.gained[node] = struct{}{}
	if ref.Kind == podref.Claim {
		for name := range g.byClaim[ref] {
			g.holdVolume(name, node)
		}
	}
}

func (g *graph) holdVolume(name, node string) {
	g.hold(podref.Ref{Kind: podref.Volume, Name: name}, node)
	for _, secret := range g.volumes[name].secrets {
		g.hold(secret, node)
	}
}

func (g *graph) drop(ref podref.Ref, node string) {
	nodes := g.holders[ref]
	if nodes[node] > 1 {
		nodes[node]--
		return
	}
	delete(nodes, node)
	if len(nodes) == 0 {
		delete(g.holders, ref)
	}
	if ref.Kind == podref.Claim {
		for name := range g.byClaim[ref] {
			g.dropVolume(name, node)
		}
	}
}

func (g *graph) dropVolume(name, node string) {
	g.drop(podref.Ref{Kind: podref.Volume, Name: name}, node)
	for _, secret := range g.volumes[name].secrets {
		g.drop(secret, node)
	}
}

// SetVolume records which claim a PersistentVolume is bound to and which
// secrets mounting it takes. claimName is empty for an unbound volume.
func (g *graph) SetVolume(name, claimNamespace, claimName string, secrets []podref.Ref) {
	entry := volumeEntry{claim: podref.Ref{Kind: podref.Claim, Namespace: claimNamespace, Name: claimName}, secrets: secrets}
	old, known := g.volumes[name]
	if known && old.claim == entry.claim && slices.Equal(old.secrets, secrets) {
		return
	}
	g.DeleteVolume(name)
	if claimName == "" {
		return
	}
	g.volumes[name] = entry
	bound := g.byClaim[entry.claim]
	if bound == nil {
		bound = map[string]struct{}{}
		g.byClaim[entry.claim] = bound
	}
	bound[name] = struct{}{}
	for node := range g.holders[entry.claim] {
		g.holdVolume(name, node)
	}
}

// DeleteVolume forgets a PersistentVolume.
func (g *graph) DeleteVolume(name string) {
	entry, known := g.volumes[name]
	if !known {
		return
	}
	for node := range maps.Clone(g.holders[entry.claim]) {
		g.dropVolume(name, node)
	}
	delete(g.volumes, name)
	if bound := g.byClaim[entry.claim]; len(bound) == 1 {
		delete(g.byClaim, entry.claim)
	} else {
		delete(bound, name)
	}
}

// SetOwned records which node an object is for; an empty node forgets it.
func (g *graph) SetOwned(o owned, node string) {
	if node == "" {
		delete(g.owned, o)
		return
	}
	if g.owned[o] != node {
		g.owned[o] = node
		g.gained[node] = struct{}{}
	}
}

// Reaches says whether node may read the object.
func (g *graph) Reaches(node string, ref podref.Ref) bool { return g.holders[ref][node] > 0 }

// RunsOn says whether the pod is on node.
func (g *graph) RunsOn(node string, pod podKey) bool {
	entry, known := g.pods[pod]
	return known && entry.node == node
}

// Owns says whether the object is for node.
func (g *graph) Owns(node string, o owned) bool { return g.owned[o] == node }

// Gained returns the nodes that came to reach something since the last call,
// each once, and forgets them.
func (g *graph) Gained() []string {
	if len(g.gained) == 0 {
		return nil
	}
	nodes := slices.Collect(maps.Keys(g.gained))
	clear(g.gained)
	return nodes
}
