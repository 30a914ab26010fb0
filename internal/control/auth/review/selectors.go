package review

import (
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// fieldRequirements turns what can be expressed into requirements. A
// requirement left out only makes the request look wider than it is, so
// nothing is allowed by mistake; the error says what was left out.
func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s == nil {
		return nil, nil
	}
	if s.RawSelector != "" {
		parsed, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, fmt.Errorf("reading fieldSelector.rawSelector: %w", err)
		}
		return parsed.Requirements(), nil
	}
	var out fields.Requirements
	var odd []error
	for _, r := range s.Requirements {
		operators := map[metav1.FieldSelectorOperator]selection.Operator{
			metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
		}
		operator, expressible := operators[r.Operator]
		if !expressible || len(r.Values) != 1 {
			odd = append(odd, fmt.Errorf("fieldSelector requirement on %q: operator %q with %d values cannot be used, only In and NotIn "+
				"with one value", r.Key, r.Operator, len(r.Values)))
			continue
		}
		out = append(out, fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
	}
	return out, orNothing(len(out), odd)
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if s == nil {
		return nil, nil
	}
	if s.RawSelector != "" {
		parsed, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, fmt.Errorf("reading labelSelector.rawSelector: %w", err)
		}
		requirements, _ := parsed.Requirements()
		return requirements, nil
	}
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var odd []error
	for _, r := range s.Requirements {
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil {
			odd = append(odd, fmt.Errorf("labelSelector requirement on %q: %w", r.Key, err))
			continue
		}
		out = append(out, *requirement)
	}
	return out, orNothing(len(out), odd)
}

// orNothing reports oddities only when no requirement remains: the rest of a
// selector still narrows the request.
func orNothing(kept int, odd []error) error {
	if kept > 0 {
		return nil
	}
	return errors.Join(odd...)
}
