// Package disruption does the arithmetic of PodDisruptionBudgets: which budgets
// speak about a pod, and what spending one disruption does to a budget's
// status.
package disruption

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// MaxDisrupted is how many evictions may await confirmation by the disruption
// controller in one budget. It bounds the size of the object.
const MaxDisrupted = 2000

const refusal = "Cannot evict pod as it would violate the pod's disruption budget."

// Matching returns the budgets of the pod's namespace whose selector covers the
// pod. A nil selector covers nothing, an empty one everything. A selector that
// does not parse is an error: guessing would evict.
func Matching(pod *v1.Pod, budgets []policyv1.PodDisruptionBudget) ([]policyv1.PodDisruptionBudget, error) {
	var out []policyv1.PodDisruptionBudget
	for _, b := range budgets {
		if b.Namespace != pod.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("parsing selector of disruption budget %s/%s: %w", b.Namespace, b.Name, err)
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			out = append(out, b)
		}
	}
	return out, nil
}

// UnhealthyMayGo says whether an unready pod can be evicted without spending
// the budget: always, if the budget's policy says so, else as long as the
// application has the healthy pods it wants.
func UnhealthyMayGo(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// TakeDisruption takes one allowed disruption out of the budget for a pod, or
// returns an API error that says why there is none. It changes only the status
// of b. The disruption controller later confirms or drops the entry in
// disruptedPods.
func TakeDisruption(b *policyv1.PodDisruptionBudget, pod string, now time.Time) error {
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return refuse(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name))
	case b.Status.DisruptionsAllowed < 0:
		return forbid(b.Name, "pdb disruptions allowed is negative")
	case len(b.Status.DisruptedPods) > MaxDisrupted:
		return forbid(b.Name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	case b.Status.DisruptionsAllowed == 0:
		return refuse(0, shortage(b))
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod] = metav1.NewTime(now)
	if b.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: b.Status.ObservedGeneration,
			LastTransitionTime: metav1.NewTime(now),
		})
	}
	return nil
}

// shortage explains an exhausted budget.
func shortage(b *policyv1.PodDisruptionBudget) string {
	s := b.Status
	i := slices.IndexFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == policyv1.DisruptionAllowedCondition })
	switch {
	case i >= 0 && s.Conditions[i].Status == metav1.ConditionFalse && s.Conditions[i].Reason == policyv1.SyncFailedReason:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name,
			s.Conditions[i].Message)
	case s.CurrentHealthy <= s.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, s.DesiredHealthy,
			s.CurrentHealthy)
	}
	text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	if i >= 0 {
		if c := s.Conditions[i]; c.Status == metav1.ConditionFalse {
			if c.Reason != "" {
				text += fmt.Sprintf(" (%s)", c.Reason)
			}
			if c.Message != "" {
				text += ": " + c.Message
			}
		}
	}
	return text
}

func refuse(retryAfter int, cause string) error {
	err := apierrors.NewTooManyRequests(refusal, retryAfter)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

func forbid(name, why string) error {
	return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudget"), name, fmt.Errorf("%s", why))
}
