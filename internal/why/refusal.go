package why

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refusal tells why a node that runs these pods does not take another one, and
// which field asks for what the node has not. Both are empty where the fields of
// pod and node leave room for it.
func Refusal(p *v1.Pod, n *v1.Node, running []*v1.Pod) (reason, field string) {
	w := &World{Objects: make([]metav1.Object, 0, len(running))}
	for _, o := range running {
		w.Objects = append(w.Objects, o)
	}
	return refusal(w, p, n)
}
