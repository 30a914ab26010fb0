package admit

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

// DefaultTolerationSeconds gives pods 300 seconds on a node that is not ready
// or cannot be reached, unless they say otherwise.
const DefaultTolerationSeconds = "DefaultTolerationSeconds"

const defaultTolerationSeconds = 300

type tolerations struct{ *admission.Handler }

func newDefaultTolerationSeconds(io.Reader) (admission.Interface, error) {
	return &tolerations{admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (t *tolerations) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod := podOf(a); pod != nil {
		pod.Spec.Tolerations = withDefaultTolerations(pod.Spec.Tolerations)
	}
	return nil
}

func withDefaultTolerations(have []corev1.Toleration) []corev1.Toleration {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !mentions(have, key) {
			have = append(have, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: ptr.To[int64](defaultTolerationSeconds),
			})
		}
	}
	return have
}

// mentions says whether a toleration speaks of the taint at all, for however
// long and whatever its operator.
func mentions(have []corev1.Toleration, key string) bool {
	for i := range have {
		t := &have[i]
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
