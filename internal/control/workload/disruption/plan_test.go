package disruption

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestAllowance(t *testing.T) {
	now := time.Unix(1000, 0)
	min := func(s string) policyv1.PodDisruptionBudgetSpec {
		v := intstr.Parse(s)
		return policyv1.PodDisruptionBudgetSpec{MinAvailable: &v}
	}
	most := func(s string) policyv1.PodDisruptionBudgetSpec {
		v := intstr.Parse(s)
		return policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &v}
	}
	for name, c := range map[string]struct {
		spec      policyv1.PodDisruptionBudgetSpec
		healthy   int
		sick      int
		scale     int32 // 0: no owner
		disrupted map[string]metav1.Time
		want      string
	}{
		"number":                   {spec: min("2"), healthy: 3, scale: 3, want: "expected 3 desired 2 healthy 3 allowed 1"},
		"number, not enough":       {spec: min("2"), healthy: 2, sick: 1, scale: 3, want: "expected 3 desired 2 healthy 2 allowed 0"},
		"percent of the owner":     {spec: min("50%"), healthy: 4, scale: 10, want: "expected 10 desired 5 healthy 4 allowed 0"},
		"percent rounds up":        {spec: min("34%"), healthy: 3, scale: 3, want: "expected 3 desired 2 healthy 3 allowed 1"},
		"max unavailable":          {spec: most("1"), healthy: 3, scale: 3, want: "expected 3 desired 2 healthy 3 allowed 1"},
		"max unavailable, percent": {spec: most("30%"), healthy: 10, scale: 10, want: "expected 10 desired 7 healthy 10 allowed 3"},
		"bare pods and percent":    {spec: most("1"), healthy: 3, want: "found no controllers for pod \"h0\""},
		"evicted a moment ago": {spec: min("1"), healthy: 3, scale: 3,
			disrupted: map[string]metav1.Time{"h0": metav1.NewTime(now.Add(-time.Minute))},
			want:      "expected 3 desired 1 healthy 2 allowed 1 again 1m0s"},
		"eviction never came": {spec: min("1"), healthy: 3, scale: 3,
			disrupted: map[string]metav1.Time{"h0": metav1.NewTime(now.Add(-time.Hour))}, want: "expected 3 desired 1 healthy 3 allowed 2"},
	} {
		b := &policyv1.PodDisruptionBudget{Spec: c.spec, Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: c.disrupted}}
		var pods []*v1.Pod
		for i := range c.healthy + c.sick {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("h", i)}}
			if i < c.healthy {
				p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
			}
			pods = append(pods, p)
		}
		expected, desired, got := expect(b, pods, func(*v1.Pod) (string, int32, bool) { return "owner", c.scale, c.scale > 0 })
		if got == "" {
			st, again := status(b, pods, expected, desired, now)
			got = fmt.Sprintf("expected %d desired %d healthy %d allowed %d", st.ExpectedPods, st.DesiredHealthy, st.CurrentHealthy,
				st.DisruptionsAllowed)
			if again > 0 {
				got += " again " + again.String()
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
