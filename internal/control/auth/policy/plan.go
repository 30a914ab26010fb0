package policy

import (
	"encoding/json"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// shape is what the four kinds have in common, as far as defaults go.
type shape struct {
	meta     *metav1.ObjectMeta
	rules    []rbacv1.PolicyRule
	isSum    bool // rules belong to the aggregation controller
	subjects []rbacv1.Subject
	ref      rbacv1.RoleRef
}

func shapeOf(obj any) shape {
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		return shape{meta: &o.ObjectMeta, rules: o.Rules, isSum: o.AggregationRule != nil}
	case *rbacv1.Role:
		return shape{meta: &o.ObjectMeta, rules: o.Rules}
	case *rbacv1.ClusterRoleBinding:
		return shape{meta: &o.ObjectMeta, subjects: o.Subjects, ref: o.RoleRef}
	case *rbacv1.RoleBinding:
		return shape{meta: &o.ObjectMeta, subjects: o.Subjects, ref: o.RoleRef}
	}
	panic(fmt.Sprintf("%T is not an RBAC object", obj))
}

// step is what to do about one default object.
type step int

const (
	leave step = iota
	create
	patch
	replace // delete and create: a binding's role cannot change
)

// plan compares a default with what the cluster has (nil: nothing). For patch
// it returns a JSON merge patch that adds what is missing and holds only while
// the object is still the one compared.
func plan(have, want any) (step, []byte, error) {
	if have == nil {
		return create, nil, nil
	}
	h, w := shapeOf(have), shapeOf(want)
	if h.meta.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return leave, nil, nil
	}
	if h.ref != w.ref {
		return replace, nil, nil
	}
	metadata := map[string]any{}
	if labels := missingKeys(h.meta.Labels, w.meta.Labels); labels != nil {
		metadata["labels"] = labels
	}
	if annotations := missingKeys(h.meta.Annotations, w.meta.Annotations); annotations != nil {
		metadata["annotations"] = annotations
	}
	body := map[string]any{}
	if covered, missing := validation.Covers(h.rules, w.rules); !covered && !w.isSum {
		body["rules"] = slices.Concat(h.rules, compact(missing))
	}
	if missing := missingSubjects(h.subjects, w.subjects); missing != nil {
		body["subjects"] = slices.Concat(h.subjects, missing)
	}
	if len(metadata)+len(body) == 0 {
		return leave, nil, nil
	}
	metadata["uid"], metadata["resourceVersion"] = h.meta.UID, h.meta.ResourceVersion
	body["metadata"] = metadata
	out, err := json.Marshal(body)
	if err != nil {
		return leave, nil, fmt.Errorf("encoding a patch for %q: %w", h.meta.Name, err)
	}
	return patch, out, nil
}

func missingKeys(have, want map[string]string) map[string]string {
	var missing map[string]string
	for k, v := range want {
		if current, there := have[k]; !there || current != v {
			if missing == nil {
				missing = map[string]string{}
			}
			missing[k] = v
		}
	}
	return missing
}

func missingSubjects(have, want []rbacv1.Subject) []rbacv1.Subject {
	var missing []rbacv1.Subject
	for _, s := range want {
		if !slices.Contains(have, s) {
			missing = append(missing, s)
		}
	}
	return missing
}

// compact joins single-verb rules about the same things into one rule each.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, r := range rules {
		i := slices.IndexFunc(out, func(o rbacv1.PolicyRule) bool {
			return slices.Equal(o.APIGroups, r.APIGroups) && slices.Equal(o.Resources, r.Resources) &&
				slices.Equal(o.ResourceNames, r.ResourceNames) && slices.Equal(o.NonResourceURLs, r.NonResourceURLs)
		})
		if i < 0 {
			out = append(out, r)
			continue
		}
		out[i].Verbs = append(slices.Clone(out[i].Verbs), r.Verbs...)
	}
	return out
}
