package admit

import (
	"context"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// NotReadyTaint marks every new node as not ready, so that nothing is
// scheduled to it before its conditions are known.
const TaintNodesByCondition = "TaintNodesByCondition"

type notReadyTaint struct{ *admission.Handler }

func newTaintNodesByCondition(io.Reader) (admission.Interface, error) {
	return &notReadyTaint{admission.NewHandler(admission.Create)}, nil
}

func (t *notReadyTaint) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := a.GetObject().(*corev1.Node)
	if !ok || !isFor(a, nodesResource) {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(have corev1.Taint) bool { return have.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
