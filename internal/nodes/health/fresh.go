package health

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// fresh holds nodes as the API answered with them while the cache does not show
// that yet. After an API outage the cache's watch may wait a minute for its next
// try; who went by the cache alone until then would ask the API the same as fast
// as it answers. The zero fresh is ready to use, by many at once.
type fresh struct {
	mu    sync.Mutex
	nodes map[string]*v1.Node
}

// put keeps an answer of the API, which must not change any more.
func (f *fresh) put(n *v1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.nodes[n.Name]; have != nil && !later(n, have) {
		return
	}
	if f.nodes == nil {
		f.nodes = map[string]*v1.Node{}
	}
	f.nodes[n.Name] = n
}

// newest returns the later of two: the API's last answer about the node, and n.
func (f *fresh) newest(n *v1.Node) *v1.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.nodes[n.Name]; have != nil && later(have, n) {
		return have
	}
	return n
}

// shown forgets an answer that the cache has come up to.
func (f *fresh) shown(cached *v1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.nodes[cached.Name]; have != nil && !later(have, cached) {
		delete(f.nodes, cached.Name)
	}
}

// gone forgets a node that was deleted, but not one that was made again since.
func (f *fresh) gone(n *v1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.nodes[n.Name]; have != nil && have.UID == n.UID {
		delete(f.nodes, n.Name)
	}
}

// later says that a is of a later version than b; no, if one of them has no
// version that can be compared.
func later(a, b *v1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}
