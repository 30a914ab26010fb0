// Package view makes what the status page shows: plain structs, computed by
// pure functions of a snapshot of the cluster's objects, the caller's rights and
// the time. Nothing here reads, waits or writes.
//
// Every function takes Rights and leaves out what the caller may not list. No
// view holds anything of a Secret or of a ConfigMap's content.
package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

// callerRights are those of the caller, as the API server's authorizer decides them.
type callerRights interface {
	// List says whether the caller may list a resource ("pods",
	// "deployments.apps") in a namespace; "" means in all of them.
	List(resource, namespace string) bool
	// Path says whether the caller may get a path of the API server.
	Path(path string) bool
}

// Objects are the API's objects as the control plane's informers hold them. The
// slices are the caller's, the objects are shared and must not be changed.
type Objects interface {
	Nodes() []*v1.Node
	Node(name string) *v1.Node
	// Pods and the lists below take "" for all namespaces.
	Pods(namespace string) []*v1.Pod
	PodsOn(node string) []*v1.Pod
	Pod(namespace, name string) *v1.Pod
	Namespaces() []*v1.Namespace
	// Workloads are the objects of a kind of Kinds.
	Workloads(kind, namespace string) []metav1.Object
	Workload(kind, namespace, name string) metav1.Object
	Services(namespace string) []*v1.Service
	Service(namespace, name string) *v1.Service
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	Claim(namespace, name string) *v1.PersistentVolumeClaim
}

// Snapshot is what a view is made of. Its functions answer from memory, or from
// what was read before; nil ones mean that this server does not know.
type Snapshot struct {
	Objects
	// Heartbeat is when a node was last heard, on this server's clock.
	Heartbeat func(node string) (time.Time, bool)
	// Outlook is how a node stands with the health controller and what follows.
	Outlook func(node string) (journal.Record, bool)
	// Zones are the health controller's.
	Zones []Zone
	// Usage is what nodes and pods use, by name and by namespace/name.
	Usage, PodUsage map[string]Usage
	// Parts and Certificates are those of this server.
	Parts        []Part
	Certificates []Certificate
	// Records are the decisions about an object, oldest first.
	Records func(ref journal.Ref) []journal.Record
	// Events are those about an object, as far as the caller may list them.
	Events func(kind, namespace, name string) []*v1.Event
	// Why answers with the caller's rights.
	Why func(ref journal.Ref) *why.Answer
	// Thresholds are the node's eviction thresholds, signal by signal.
	Thresholds func(node string) []journal.Fact
	// Rules are what the service proxy of this host programs for a Service.
	Rules func(namespace, name string) []string
}

// Zone is a zone of nodes with the rate at which its nodes may be evicted.
type Zone struct {
	Name, State     string
	Ready, NotReady int
	// Rate is NoExecute taints a second, Tokens what may be spent now.
	Rate, Tokens float64
	Waiting      int
}

// Usage is CPU in thousandths of a core and memory in bytes.
type Usage struct{ CPU, Memory int64 }

// Part is a part of this server's process, or a check of its health.
type Part struct {
	Name     string
	Since    time.Time
	Restarts int
	// Fault says what is wrong; empty when nothing is.
	Fault string
}

// Certificate is one that this server renews at Renewal.
type Certificate struct {
	Name         string
	End, Renewal time.Time
}

// Query chooses the rows of a list.
type Query struct {
	// Text is a part of the name.
	Text, Namespace, Kind, Zone, Node string
	// Wrong leaves only what is not well.
	Wrong bool
	// After is the key of the last row of the page before.
	After string
}

// PageSize is how many rows a list has.
const PageSize = 100

// pageRows is a part of a list.
type pageRows[T any] struct {
	Rows []T
	// Matching is how many rows match the query, Next the key that the next page
	// comes after; empty on the last.
	Matching int
	Next     string
	// Later says that this is not the first page.
	Later bool
}

// paged keeps the rows of one page while it sees all: its cost is that of one
// look at each row, not of sorting them.
type paged[O any] struct {
	after   string
	matches int
	beyond  int // rows that come after the cursor
	rows    []keyed[O]
	worst   string
}

type keyed[O any] struct {
	key string
	o   O
}

func (p *paged[O]) add(key string, o O) {
	p.matches++
	if key <= p.after {
		return
	}
	p.beyond++
	if p.worst != "" && key > p.worst {
		return
	}
	if p.rows = append(p.rows, keyed[O]{key, o}); len(p.rows) >= 4*PageSize {
		p.trim()
	}
}

func (p *paged[O]) trim() {
	slices.SortFunc(p.rows, func(a, b keyed[O]) int { return cmp.Compare(a.key, b.key) })
	if len(p.rows) > PageSize {
		clear(p.rows[PageSize:])
		p.rows = p.rows[:PageSize]
		p.worst = p.rows[PageSize-1].key
	}
}

// pageOf ends the collection.
func pageOf[O, T any](p *paged[O], row func(O) T) pageRows[T] {
	p.trim()
	out := pageRows[T]{Matching: p.matches, Later: p.after != "", Rows: make([]T, 0, len(p.rows))}
	for _, k := range p.rows {
		out.Rows = append(out.Rows, row(k.o))
	}
	if p.beyond > len(p.rows) {
		out.Next = p.rows[len(p.rows)-1].key
	}
	return out
}

// may says whether the caller may list a resource there.
func may(r callerRights, resource, namespace string) bool {
	return r.List(resource, "") || namespace != "" && r.List(resource, namespace)
}

// maxNamespaces bounds the namespaces that are asked about one by one, for
// callers who may not list a resource everywhere.
const maxNamespaces = 1000

// within calls f for each namespace in which the caller may list a resource, or
// once with "" where that is all of them. complete is false if there are too many
// namespaces to ask about.
func (s *Snapshot) within(r callerRights, resource, namespace string, f func(namespace string)) (complete bool) {
	if namespace != "" {
		if may(r, resource, namespace) {
			f(namespace)
		}
		return true
	}
	if r.List(resource, "") {
		f("")
		return true
	}
	all := s.Namespaces()
	slices.SortFunc(all, func(a, b *v1.Namespace) int { return cmp.Compare(a.Name, b.Name) })
	for i, ns := range all {
		if i >= maxNamespaces {
			return false
		}
		if r.List(resource, ns.Name) {
			f(ns.Name)
		}
	}
	return true
}

// namespaceNames are those in which the caller may list pods, for a choice.
func namespaceNames(s *Snapshot, r callerRights) (out []string) {
	s.within(r, "pods", "", func(ns string) {
		if ns != "" {
			out = append(out, ns)
			return
		}
		for _, n := range s.Namespaces() {
			out = append(out, n.Name)
		}
	})
	slices.Sort(out)
	return out[:min(len(out), maxNamespaces)]
}

// podsOf calls f for each pod that the caller may see.
func (s *Snapshot) podsOf(r callerRights, namespace string, f func(*v1.Pod)) {
	s.within(r, "pods", namespace, func(ns string) {
		for _, p := range s.Pods(ns) {
			f(p)
		}
	})
}

// decisions are the journal's records about an object. Their facts name nodes
// and other pods, so they take the right to list both, everywhere.
func (s *Snapshot) decisions(r callerRights, ref journal.Ref) []journal.Record {
	if s.Records == nil || !r.List("nodes", "") || !r.List("pods", "") {
		return nil
	}
	return s.Records(ref)
}

// events are those about an object.
func (s *Snapshot) events(kind, namespace, name string) []*v1.Event {
	if s.Events == nil {
		return nil
	}
	return s.Events(kind, namespace, name)
}

// answer is the answer of berth why, or nil.
func (s *Snapshot) answer(ref journal.Ref) *why.Answer {
	if s.Why == nil {
		return nil
	}
	return s.Why(ref)
}

func contains(name, text string) bool {
	return text == "" || strings.Contains(name, strings.ToLower(strings.TrimSpace(text)))
}
