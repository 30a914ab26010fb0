package disruption

import (
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTakeDisruption(t *testing.T) {
	crowd := map[string]metav1.Time{}
	for i := range MaxDisrupted + 1 {
		crowd[string(rune(i))+"x"] = metav1.Time{}
	}
	condition := func(reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: reason,
			Message: message}}
	}
	for name, c := range map[string]struct {
		status policyv1.PodDisruptionBudgetStatus
		code   int32
		retry  int32
		cause  string
	}{
		"some left": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 2}},
		"unsettled": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 2}, code: 429, retry: 10,
			cause: "The disruption budget b is still being processed by the server."},
		"exhausted": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 1, DesiredHealthy: 3}, code: 429,
			cause: "The disruption budget b needs 3 healthy pods and has 1 currently"},
		"odd": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 4, DesiredHealthy: 3,
			Conditions: condition("Why", "because")}, code: 429,
			cause: "The disruption budget b does not allow evicting pods currently (Why): because"},
		"failed": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, Conditions: condition(policyv1.SyncFailedReason,
			"no scale")}, code: 429,
			cause: "The disruption budget b does not allow evicting pods currently because it failed sync: no scale"},
		"negative": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: -1}, code: 403},
		"crowded": {status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 1, DisruptedPods: crowd},
			code: 403},
	} {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2}, Status: *c.status.DeepCopy()}
		err := TakeDisruption(b, "p", time.Unix(5, 0))
		if c.code == 0 {
			if err != nil || b.Status.DisruptionsAllowed != c.status.DisruptionsAllowed-1 || b.Status.DisruptedPods["p"].Unix() != 5 {
				t.Errorf("%s: %v, %+v", name, err, b.Status)
			}
			continue
		}
		s, ok := err.(apierrors.APIStatus)
		if !ok || s.Status().Code != c.code {
			t.Errorf("%s: got %v, want code %d", name, err, c.code)
			continue
		}
		if c.cause != "" && (s.Status().Details.RetryAfterSeconds != c.retry || s.Status().Details.Causes[0].Message != c.cause) {
			t.Errorf("%s: got %+v, want %q after %ds", name, s.Status().Details, c.cause, c.retry)
		}
		if !maps.Equal(b.Status.DisruptedPods, c.status.DisruptedPods) || b.Status.DisruptionsAllowed != c.status.DisruptionsAllowed {
			t.Errorf("%s: a refusal changed the budget", name)
		}
	}
}

func TestTakeLastDisruption(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}
	if err := TakeDisruption(b, "p", time.Unix(5, 0)); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition); c == nil ||
		c.Status != metav1.ConditionFalse || c.Reason != policyv1.InsufficientPodsReason {
		t.Errorf("after the last disruption the condition is %+v", c)
	}
}

func TestMatching(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Labels: map[string]string{"x": "1"}}}
	budget := func(ns string, s *metav1.LabelSelector) policyv1.PodDisruptionBudget {
		return policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: ns},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: s}}
	}
	all := []policyv1.PodDisruptionBudget{
		budget("a", nil), budget("a", &metav1.LabelSelector{}), budget("b", &metav1.LabelSelector{}),
		budget("a", &metav1.LabelSelector{MatchLabels: map[string]string{"x": "2"}}),
	}
	got, err := Matching(pod, all)
	if err != nil || len(got) != 1 || len(got[0].Spec.Selector.MatchLabels) != 0 {
		t.Errorf("matching budgets are %+v, %v; want the one that selects everything", got, err)
	}
	bad := budget("a", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Like"}}})
	if _, err := Matching(pod, []policyv1.PodDisruptionBudget{bad}); err == nil {
		t.Error("a selector that cannot be read must not let the pod go")
	}
}

func TestUnhealthyMayGo(t *testing.T) {
	always, healthy := policyv1.AlwaysAllow, policyv1.IfHealthyBudget
	for _, c := range []struct {
		policy           *policyv1.UnhealthyPodEvictionPolicyType
		current, desired int32
		want             bool
	}{{nil, 2, 2, true}, {nil, 1, 2, false}, {nil, 0, 0, false}, {&healthy, 3, 2, true}, {&always, 0, 5, true}} {
		b := &policyv1.PodDisruptionBudget{
			Spec:   policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: c.policy},
			Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: c.current, DesiredHealthy: c.desired},
		}
		if got := UnhealthyMayGo(b); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
