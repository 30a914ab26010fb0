package node

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// View is the Node object as the agent's parts see it: this node, as the API
// last told of it.
type View struct {
	mu    sync.Mutex
	node  *v1.Node
	ready chan struct{} // closed when the Node was first seen
	first []string      // addresses to use before that
	on    []func(*v1.Node)
	// ask reads the Node from the API; nil where there is none.
	ask func(context.Context) (*v1.Node, error)
}

// NewView makes the view of a Node that was not seen yet. first are the addresses
// to use until then; ask reads the Node from the API, nil where there is none.
func NewView(first []string, ask func(context.Context) (*v1.Node, error)) *View {
	return &View{ready: make(chan struct{}), first: first, ask: ask}
}

// Ready is closed when the Node was first seen.
func (v *View) Ready() <-chan struct{} { return v.ready }

// OnChange has f called with every new state of the Node from now on.
func (v *View) OnChange(f func(*v1.Node)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.on = append(v.on, f)
}

// Set takes in a new state of the Node; nil when it was deleted.
func (v *View) Set(n *v1.Node) {
	v.mu.Lock()
	known := v.node != nil
	if n != nil {
		v.node = n
		if !known {
			close(v.ready)
		}
	}
	on := v.on
	v.mu.Unlock()
	if n != nil {
		for _, f := range on {
			f(n)
		}
	}
}

// Fetch asks the API for the Node as it is now; nil when it does not answer.
func (v *View) Fetch(ctx context.Context) *v1.Node {
	if v.ask == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	n, err := v.ask(ctx)
	if err != nil {
		return nil
	}
	return n
}

// Get returns the Node as last seen, nil before that.
func (v *View) Get() *v1.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.node
}

// Wait returns when the Node is known or ctx ends.
func (v *View) Wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-v.ready:
	}
}

// UID is the Node's, empty before it was seen.
func (v *View) UID() types.UID {
	if n := v.Get(); n != nil {
		return n.UID
	}
	return ""
}

// IPs are the node's addresses, the primary one first.
func (v *View) IPs() []string {
	n := v.Get()
	if n == nil {
		return v.first
	}
	var out []string
	for _, a := range n.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	if len(out) == 0 {
		return v.first
	}
	return out
}

// NotReady says that the API calls the node not ready, no matter who wrote that. A
// Node that was not seen, or that says nothing yet, is not called anything.
func (v *View) NotReady() bool {
	if n := v.Get(); n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status != v1.ConditionTrue
			}
		}
	}
	return false
}

// Allocatable is what pods may use together, nil before the Node was seen.
func (v *View) Allocatable() v1.ResourceList {
	if n := v.Get(); n != nil {
		return n.Status.Allocatable
	}
	return nil
}
