package faulttest

import (
	"bytes"
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
)

// mistake is a shell that does one thing wrong, on purpose.
type mistake struct {
	name string
	w    *cluster
	// expelled are nodes as they were under a NoExecute taint; the store's lock
	// guards it.
	expelled map[string]object
	dropped  map[string]bool // pods that were to be deleted and were not; likewise
}

// patch is what the shell sends in place of what it should; skip says nothing.
func (b *mistake) patch(k kind, body []byte) (_ []byte, skip bool) {
	switch {
	case b.name == "write over others" && k == nodes:
		var fields map[string]any
		if json.Unmarshal(body, &fields) == nil {
			delete(fields, "metadata")
			if without, err := json.Marshal(fields); err == nil {
				return without, false
			}
		}
	case b.name == "forget recovery" && k == nodes:
		return body, bytes.Contains(body, []byte(`"taints":`)) && !bytes.Contains(body, []byte(`"effect"`))
	case b.name == "leave pods ready" && k == pods:
		return body, bytes.Contains(body, []byte(`"type":"Ready"`))
	}
	return body, false
}

// putBack is what a shell does that takes its own writes, when it sees them late,
// for another party's: the taint it has just taken off comes back.
func (b *mistake) putBack(l *instance, n *v1.Node) {
	s := b.w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.name == "taint anyway" && !clustermodel.Evicts(n) && clustermodel.NodeReady(n) == v1.ConditionUnknown {
		b.w.wg.Go(func() { b.taintLater(l, n.Name) })
	}
	old, _ := b.expelled[n.Name].(*v1.Node)
	if b.name != "put back" || old == nil || clustermodel.Evicts(n) || s.objects[nodes][n.Name] != object(n) {
		return
	}
	n = n.DeepCopy()
	n.Spec.Taints = old.Spec.Taints
	s.put(nodes, n.Name, n, l)
}

func (b *mistake) forget(pod string) {
	b.w.store.mu.Lock()
	defer b.w.store.mu.Unlock()
	b.dropped[pod] = true
}

// pod is how a shell reads a pod that counts tolerations wrongly, or that takes a
// deletion for done.
func (b *mistake) pod(p *v1.Pod) {
	b.w.store.mu.Lock()
	defer b.w.store.mu.Unlock()
	if b.dropped[p.Name] {
		now := metav1.Now()
		p.DeletionTimestamp = &now
	}
	if b.name == "shorten tolerations" {
		for i := range p.Spec.Tolerations {
			p.Spec.Tolerations[i].TolerationSeconds = new(int64)
		}
	}
}

// taintLater is what a shell does that thinks of the node alone.
func (b *mistake) taintLater(l *instance, name string) {
	select {
	case <-time.After(30 * time.Second):
	case <-l.ctx.Done():
		return
	}
	s := b.w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.objects[nodes][name].(*v1.Node); ok && !clustermodel.Evicts(n) && clustermodel.NodeReady(n) == v1.ConditionUnknown {
		n = n.DeepCopy()
		now := metav1.Now()
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute, TimeAdded: &now})
		s.put(nodes, name, n, l)
	}
}

// cached is what a shell that does not ask the API takes for the node.
func (b *mistake) cached(_ kind, name string) object {
	if b.name != "believe the cache" {
		return nil
	}
	b.w.store.mu.Lock()
	defer b.w.store.mu.Unlock()
	return b.expelled[name]
}

// listed is how a shell that forgets ranges learns of a node.
func (b *mistake) listed(n *v1.Node) {
	if b.name == "forget ranges" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
	}
}

// answered is what a shell that goes by its cache alone keeps of an answer:
// nothing that could be told to be later.
func (b *mistake) answered(n *v1.Node) {
	if b.name == "forget answers" {
		n.ResourceVersion = ""
	}
}
