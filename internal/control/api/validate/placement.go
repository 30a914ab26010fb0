package validate

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// placement checks everything that says where a pod may go.
func placement(p *field.Path, s *v1.PodSpec) errs {
	all := labels(p.Child("nodeSelector"), s.NodeSelector)
	all = append(all, affinity(p.Child("affinity"), s.Affinity)...)
	all = append(all, tolerations(p.Child("tolerations"), s.Tolerations)...)
	all = append(all, spread(p.Child("topologySpreadConstraints"), s.TopologySpreadConstraints)...)
	seen := unique[string]{}
	for i, gate := range s.SchedulingGates {
		at := p.Child("schedulingGates").Index(i)
		all = append(all, invalid(at, gate.Name, validation.IsQualifiedName(gate.Name))...)
		all = append(all, seen.add(at, gate.Name)...)
	}
	return all
}

func affinity(p *field.Path, a *v1.Affinity) errs {
	if a == nil {
		return nil
	}
	var all errs
	if n := a.NodeAffinity; n != nil {
		at := p.Child("nodeAffinity")
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			all = append(all, nodeSelector(at.Child("requiredDuringSchedulingIgnoredDuringExecution"), required)...)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			term := &n.PreferredDuringSchedulingIgnoredDuringExecution[i]
			one := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
			all = append(all, weight(one, term.Weight)...)
			all = append(all, nodeSelectorTerm(one.Child("preference"), &term.Preference)...)
		}
	}
	if pod := a.PodAffinity; pod != nil {
		all = append(all, podAffinity(p.Child("podAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution)...)
	}
	if pod := a.PodAntiAffinity; pod != nil {
		all = append(all, podAffinity(p.Child("podAntiAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution)...)
	}
	return all
}

func weight(p *field.Path, w int32) errs {
	if w < 1 || w > 100 {
		return errs{field.Invalid(p.Child("weight"), w, "must be in the range 1-100")}
	}
	return nil
}

func nodeSelector(p *field.Path, s *v1.NodeSelector) errs {
	at := p.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return errs{field.Required(at, "must have at least one node selector term")}
	}
	var all errs
	for i := range s.NodeSelectorTerms {
		all = append(all, nodeSelectorTerm(at.Index(i), &s.NodeSelectorTerms[i])...)
	}
	return all
}

func nodeSelectorTerm(p *field.Path, t *v1.NodeSelectorTerm) errs {
	var all errs
	for i := range t.MatchExpressions {
		all = append(all, nodeExpression(p.Child("matchExpressions").Index(i), &t.MatchExpressions[i])...)
	}
	for i := range t.MatchFields {
		all = append(all, nodeField(p.Child("matchFields").Index(i), &t.MatchFields[i])...)
	}
	return all
}

func nodeExpression(p *field.Path, r *v1.NodeSelectorRequirement) errs {
	var all errs
	values := p.Child("values")
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			all = append(all, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			all = append(all, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			all = append(all, field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		all = append(all, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	all = append(all, metavalidation.ValidateLabelName(r.Key, p.Child("key"))...)
	for i, v := range r.Values {
		all = append(all, invalid(values.Index(i), v, validation.IsValidLabelValue(v))...)
	}
	return all
}

func nodeField(p *field.Path, r *v1.NodeSelectorRequirement) errs {
	var all errs
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			all = append(all, field.Required(p.Child("values"),
				"must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		all = append(all, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(all, field.Invalid(p.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, v := range r.Values {
		all = append(all, invalid(p.Child("values").Index(i), v, isSubdomain(v))...)
	}
	return all
}

func podAffinity(p *field.Path, required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) errs {
	var all errs
	for i := range required {
		all = append(all, affinityTerm(p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i), &required[i])...)
	}
	for i := range preferred {
		at := p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		all = append(all, weight(at, preferred[i].Weight)...)
		all = append(all, affinityTerm(at.Child("podAffinityTerm"), &preferred[i].PodAffinityTerm)...)
	}
	return all
}

func affinityTerm(p *field.Path, t *v1.PodAffinityTerm) errs {
	all := selector(p.Child("labelSelector"), t.LabelSelector)
	all = append(all, selector(p.Child("namespaceSelector"), t.NamespaceSelector)...)
	for _, ns := range t.Namespaces {
		all = append(all, invalid(p.Child("namespace"), ns, apivalidation.ValidateNamespaceName(ns, false))...)
	}
	all = append(all, matchKeys(p, "matchLabelKeys", t.MatchLabelKeys, t.LabelSelector, true)...)
	all = append(all, matchKeys(p, "mismatchLabelKeys", t.MismatchLabelKeys, t.LabelSelector, true)...)
	for i, key := range t.MismatchLabelKeys {
		if slices.Contains(t.MatchLabelKeys, key) {
			all = append(all, field.Invalid(p.Child("mismatchLabelKeys").Index(i), key,
				"exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	if t.TopologyKey == "" {
		return append(all, field.Required(p.Child("topologyKey"), "can not be empty"))
	}
	return append(all, metavalidation.ValidateLabelName(t.TopologyKey, p.Child("topologyKey"))...)
}

// matchKeys checks label keys whose values are taken from the pod itself. The
// API server itself writes those of affinity terms into the selector, so that a
// key that is in both is an error only where it does not.
func matchKeys(p *field.Path, name string, keys []string, s *metav1.LabelSelector, stored bool) errs {
	if len(keys) == 0 {
		return nil
	}
	at := p.Child(name)
	if s == nil {
		return errs{field.Forbidden(at, "must not be specified when labelSelector is not set")}
	}
	var all errs
	used := map[string]bool{}
	for key := range s.MatchLabels {
		used[key] = true
	}
	for _, e := range s.MatchExpressions {
		used[e.Key] = true
	}
	for i, key := range keys {
		all = append(all, metavalidation.ValidateLabelName(key, at.Index(i))...)
		if used[key] && !stored {
			all = append(all, field.Invalid(at.Index(i), key, "exists in both "+name+" and labelSelector"))
		}
	}
	return all
}

func tolerations(p *field.Path, list []v1.Toleration) errs {
	var all errs
	for i, t := range list {
		at := p.Index(i)
		if t.Key != "" {
			all = append(all, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		} else if t.Operator != v1.TolerationOpExists {
			all = append(all, field.Invalid(at.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
			all = append(all, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case v1.TolerationOpEqual, "":
			all = append(all, invalid(at.Child("operator"), t.Value, validation.IsValidLabelValue(t.Value))...)
		case v1.TolerationOpExists:
			if t.Value != "" {
				all = append(all, field.Invalid(at.Child("operator"), t, "value must be empty when `operator` is 'Exists'"))
			}
		default:
			all = append(all, field.NotSupported(at.Child("operator"), t.Operator, []v1.TolerationOperator{v1.TolerationOpEqual,
				v1.TolerationOpExists}))
		}
		if t.Effect != "" {
			all = append(all, taintEffect(at.Child("effect"), t.Effect)...)
		}
	}
	return all
}

func taintEffect(p *field.Path, e v1.TaintEffect) errs {
	return oneOf(p, e, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)
}

func spread(p *field.Path, constraints []v1.TopologySpreadConstraint) errs {
	var all errs
	seen := map[string]bool{}
	for i := range constraints {
		at, c := p.Index(i), &constraints[i]
		if c.MaxSkew <= 0 {
			all = append(all, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			all = append(all, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		all = append(all, oneOf(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, v1.DoNotSchedule, v1.ScheduleAnyway)...)
		pair := fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)
		if seen[pair] {
			all = append(all, field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), pair))
		}
		seen[pair] = true
		if c.MinDomains != nil {
			if *c.MinDomains <= 0 {
				all = append(all, field.Invalid(at.Child("minDomains"), *c.MinDomains, "must be greater than zero"))
			}
			if c.WhenUnsatisfiable != v1.DoNotSchedule {
				all = append(all, field.Invalid(at.Child("minDomains"), *c.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", v1.DoNotSchedule, c.WhenUnsatisfiable)))
			}
		}
		all = append(all, oneOfIfSet(at.Child("nodeAffinityPolicy"), c.NodeAffinityPolicy, v1.NodeInclusionPolicyIgnore,
			v1.NodeInclusionPolicyHonor)...)
		all = append(all, oneOfIfSet(at.Child("nodeTaintsPolicy"), c.NodeTaintsPolicy, v1.NodeInclusionPolicyIgnore,
			v1.NodeInclusionPolicyHonor)...)
		all = append(all, selector(at.Child("labelSelector"), c.LabelSelector)...)
		all = append(all, matchKeys(at, "matchLabelKeys", c.MatchLabelKeys, c.LabelSelector, false)...)
	}
	return all
}
