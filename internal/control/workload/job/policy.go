package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// matchFailurePolicy applies the pod failure policy to a failed pod: the first rule that
// matches decides; none means the failure counts.
func matchFailurePolicy(policy *batchv1.PodFailurePolicy, pod *v1.Pod) (action batchv1.PodFailurePolicyAction, msg string) {
	if policy == nil || pod.Status.Phase != v1.PodFailed {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		if r.OnExitCodes != nil {
			if c, code := exitMatch(r.OnExitCodes, pod); c != "" {
				return r.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d", c,
					pod.Namespace, pod.Name, code, r.Action, i)
			}
		} else if len(r.OnPodConditions) > 0 {
			if t := conditionMatch(r.OnPodConditions, pod); t != "" {
				return r.Action, fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d", pod.Namespace, pod.Name, t,
					r.Action, i)
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

func exitMatch(r *batchv1.PodFailurePolicyOnExitCodesRequirement, pod *v1.Pod) (container string, code int32) {
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			t := c.State.Terminated
			if t == nil || t.ExitCode == 0 || (r.ContainerName != nil && *r.ContainerName != c.Name) {
				continue
			}
			in := slices.Contains(r.Values, t.ExitCode)
			if in == (r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return c.Name, t.ExitCode
			}
		}
	}
	return "", 0
}

func conditionMatch(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, pod *v1.Pod) v1.PodConditionType {
	for _, p := range patterns {
		for _, c := range pod.Status.Conditions {
			if c.Type == p.Type && (c.Status == p.Status || (p.Status == "" && c.Status == v1.ConditionTrue)) {
				return c.Type
			}
		}
	}
	return ""
}

// satisfied says which rule of the success policy the succeeded indexes meet,
// -1 for none.
func satisfied(policy *batchv1.SuccessPolicy, done set, completions int) int {
	if policy == nil {
		return -1
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		among := done
		total := -1
		if r.SucceededIndexes != nil {
			want := parseIndexes(*r.SucceededIndexes, completions)
			among, total = set{}, len(want)
			for n := range want {
				if done[n] {
					among[n] = true
				}
			}
		}
		if r.SucceededCount != nil {
			total = int(*r.SucceededCount)
		}
		if total >= 0 && len(among) >= total {
			return i
		}
	}
	return -1
}
