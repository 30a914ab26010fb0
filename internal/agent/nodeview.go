package agent

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeView is the Node object as the agent's parts see it.
type nodeView struct {
	mu    sync.Mutex
	node  *v1.Node
	ready chan struct{} // closed when the Node was first seen
	first []string      // addresses to use before that
	on    []func(*v1.Node)
	// ask reads the Node from the API; nil where there is none.
	ask func(context.Context) (*v1.Node, error)
}

func newNodeView(first []string) *nodeView {
	return &nodeView{ready: make(chan struct{}), first: first}
}

// set takes in a new state of the Node; nil when it was deleted.
func (v *nodeView) set(n *v1.Node) {
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

// fetch asks the API for the Node as it is now; nil when it does not answer.
func (v *nodeView) fetch(ctx context.Context) *v1.Node {
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

func (v *nodeView) get() *v1.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.node
}

// wait returns when the Node is known or ctx ends.
func (v *nodeView) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-v.ready:
	}
}

func (v *nodeView) uid() types.UID {
	if n := v.get(); n != nil {
		return n.UID
	}
	return ""
}

// ips are the node's addresses, the primary one first.
func (v *nodeView) ips() []string {
	n := v.get()
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

// notReady says that the API calls the node not ready, whoever wrote that. A
// Node that was not seen, or that says nothing yet, is not called anything.
func (v *nodeView) notReady() bool {
	if n := v.get(); n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status != v1.ConditionTrue
			}
		}
	}
	return false
}

func (v *nodeView) allocatable() v1.ResourceList {
	if n := v.get(); n != nil {
		return n.Status.Allocatable
	}
	return nil
}
