package oracle

import (
	"math/rand/v2"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/internal/policy/model"
)

// history changes a World at random and tells a Model of each change.
type history struct {
	*rand.Rand
	Cluster Cluster
	Model   *model.Model
}

// NewHistory is an empty one; equal seeds give equal histories.
func NewHistory(seed uint64) *history {
	return &history{rand.New(rand.NewPCG(seed, 1)), NewCluster(), model.New()}
}

// NewCluster is an empty cluster.
func NewCluster() Cluster {
	return Cluster{Namespaces: map[string]map[string]string{}, Pods: map[model.Key]model.Pod{},
		Policies: map[model.Key]*networkingv1.NetworkPolicy{}}
}

// Step makes one change.
func (h *history) Step() {
	switch h.IntN(9) {
	case 0, 1, 2:
		p := randomPod(h.Rand)
		h.Cluster.Pods[p.Key] = p
		h.Model.SetPod(p)
	case 3:
		k := randomPod(h.Rand).Key
		delete(h.Cluster.Pods, k)
		h.Model.DeletePod(k)
	case 4, 5:
		np := randomPolicy(h.Rand)
		h.Cluster.Policies[model.Key{Namespace: np.Namespace, Name: np.Name}] = np
		h.Model.SetPolicy(np)
	case 6:
		np := randomPolicy(h.Rand)
		k := model.Key{Namespace: np.Namespace, Name: np.Name}
		delete(h.Cluster.Policies, k)
		h.Model.DeletePolicy(k)
	case 7:
		name, l := randomPod(h.Rand).Namespace, randomLabels(h.Rand)
		h.Cluster.Namespaces[name] = l
		h.Model.SetNamespace(name, l)
	case 8:
		name := randomPod(h.Rand).Namespace
		delete(h.Cluster.Namespaces, name)
		h.Model.DeleteNamespace(name)
	}
}
