package validate

import (
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// updatable is what a pod's spec may change after creation, as clients are told.
var updatable = strings.Join([]string{
	"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// PodUpdate checks a change to a pod through its main resource. It makes a
// copy of the new spec, puts back what may change, and wants the rest to be as
// it was.
func PodUpdate(changed, old *v1.Pod) errs {
	all := append(podAnnotationsUpdate(changed, old), podGood(changed)...)
	if len(changed.Spec.Containers) != len(old.Spec.Containers) {
		return append(all, field.Forbidden(specPath.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(changed.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return append(all, field.Forbidden(specPath.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	all = append(all, deadlineUpdate(changed.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds)...)
	all = append(all, tolerationUpdate(changed.Spec.Tolerations, old.Spec.Tolerations)...)
	all = append(all, gateUpdate(changed.Spec.SchedulingGates, old.Spec.SchedulingGates)...)

	rest := changed.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.Tolerations = old.Spec.Tolerations
	rest.SchedulingGates = old.Spec.SchedulingGates
	if grace, before := rest.TerminationGracePeriodSeconds, old.Spec.TerminationGracePeriodSeconds; before != nil && *before < 0 &&
		grace != nil && *grace == 1 {
		rest.TerminationGracePeriodSeconds = before
	}
	if len(old.Spec.SchedulingGates) > 0 {
		all = append(all, gatedUpdate(rest, &old.Spec)...)
	}
	if !equality.Semantic.DeepEqual(*rest, old.Spec) {
		all = append(all, field.Forbidden(specPath, fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable,
			diff.Diff(old.Spec, *rest))))
	}
	return all
}

func deadlineUpdate(changed, old *int64) errs {
	at := specPath.Child("activeDeadlineSeconds")
	switch {
	case changed != nil && (*changed < 0 || *changed > math.MaxInt32):
		return between(at, *changed, 0, math.MaxInt32)
	case changed != nil && old != nil && *changed > *old:
		return errs{field.Invalid(at, *changed, "must be less than or equal to previous value")}
	case changed == nil && old != nil:
		return errs{field.Invalid(at, nil, "must not update from a positive integer to nil value")}
	}
	return nil
}

// tolerationUpdate lets tolerations be added and their seconds change.
func tolerationUpdate(changed, old []v1.Toleration) errs {
	for _, before := range old {
		kept := false
		for _, now := range changed {
			now.TolerationSeconds = before.TolerationSeconds
			kept = kept || equality.Semantic.DeepEqual(now, before)
		}
		if !kept {
			return errs{field.Forbidden(specPath.Child("tolerations"),
				"existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

// gateUpdate lets scheduling gates go and none come.
func gateUpdate(changed, old []v1.PodSchedulingGate) errs {
	known := map[string]bool{}
	for _, gate := range old {
		known[gate.Name] = true
	}
	var all errs
	for i, gate := range changed {
		if !known[gate.Name] {
			all = append(all, field.Forbidden(specPath.Child("schedulingGates").Index(i).Child("name"),
				fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name)))
		}
	}
	return all
}

// gatedUpdate lets a pod that is held back from scheduling be sent to fewer
// nodes than before. It puts back in rest what it has judged.
func gatedUpdate(rest, old *v1.PodSpec) errs {
	var all errs
	narrower := true
	for key, value := range old.NodeSelector {
		if now, ok := rest.NodeSelector[key]; !ok || now != value {
			narrower = false
		}
	}
	if !narrower {
		all = append(all, field.Invalid(specPath.Child("nodeSelector"), rest.NodeSelector,
			"only additions are allowed (no mutations or deletions)"))
	}
	rest.NodeSelector = old.NodeSelector

	changed, before := nodeAffinity(rest), nodeAffinity(old)
	if changed == nil && before == nil {
		return all
	}
	all = append(all, narrowerAffinity(changed, before)...)
	if rest.Affinity == nil {
		rest.Affinity = &v1.Affinity{}
	}
	rest.Affinity.NodeAffinity = before
	if old.Affinity == nil && equality.Semantic.DeepEqual(rest.Affinity, &v1.Affinity{}) {
		rest.Affinity = nil
	}
	return all
}

func nodeAffinity(s *v1.PodSpec) *v1.NodeAffinity {
	if s.Affinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity
}

// narrowerAffinity wants the required terms to be those of before, each with
// expressions at most added to its end. Preferences may be anything.
func narrowerAffinity(changed, old *v1.NodeAffinity) errs {
	if old == nil || old.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	at := specPath.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
	if changed == nil || changed.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return errs{field.Invalid(at, nil, "no deletions are allowed, only additions")}
	}
	terms := changed.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	before := old.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(before) > 0 && len(terms) != len(before) {
		return errs{field.Invalid(at.Child("nodeSelectorTerms"), terms,
			"no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var all errs
	for i := range before {
		if len(before[i].MatchExpressions) == 0 && len(before[i].MatchFields) == 0 {
			// An empty term selects nothing; anything added to it would widen.
			if len(terms[i].MatchExpressions) > 0 || len(terms[i].MatchFields) > 0 {
				all = append(all, field.Invalid(at.Child("nodeSelectorTerms").Index(i), terms[i],
					"only additions are allowed (no mutations or deletions)"))
			}
			continue
		}
		if !startsWith(terms[i].MatchExpressions, before[i].MatchExpressions) || !startsWith(terms[i].MatchFields, before[i].MatchFields) {
			all = append(all, field.Invalid(at.Child("nodeSelectorTerms").Index(i), terms[i],
				"only additions are allowed (no mutations or deletions)"))
		}
	}
	return all
}

func startsWith(list, prefix []v1.NodeSelectorRequirement) bool {
	return len(list) >= len(prefix) && (len(prefix) == 0 || equality.Semantic.DeepEqual(list[:len(prefix)], prefix))
}
