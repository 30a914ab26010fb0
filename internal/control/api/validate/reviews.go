package validate

import (
	"reflect"

	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Reviews are asked and answered and never stored: they have no metadata worth
// checking and no update.

// access wants a question about a resource or about a path, not both, and no
// metadata, which would suggest that the question is stored.
func access(m *metav1.ObjectMeta, resource *authorization.ResourceAttributes, path *authorization.NonResourceAttributes) errs {
	var all errs
	switch {
	case resource != nil && path != nil:
		all = append(all, field.Invalid(specPath.Child("nonResourceAttributes"), path,
			"cannot be specified in combination with resourceAttributes"))
	case resource == nil && path == nil:
		all = append(all, field.Invalid(specPath.Child("resourceAttributes"), resource,
			"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	all = append(all, reviewSelectors(resource)...)
	bare := m.DeepCopy()
	bare.ManagedFields = nil
	if !reflect.DeepEqual(*bare, metav1.ObjectMeta{Namespace: m.Namespace}) {
		all = append(all, field.Invalid(field.NewPath("metadata"), field.OmitValueType{}, "must be empty"))
	}
	return all
}

// reviewSelectors wants the selectors of a question to be written in one way, and well.
func reviewSelectors(a *authorization.ResourceAttributes) errs {
	if a == nil {
		return nil
	}
	p := specPath.Child("resourceAttributes")
	var all errs
	if s := a.FieldSelector; s != nil {
		at := p.Child("fieldSelector")
		list := make([]metav1.LabelSelectorRequirement, len(s.Requirements))
		for i, r := range s.Requirements {
			list[i] = metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values}
		}
		all = append(all, reviewSelector(at, s.RawSelector, list, func(key string) bool { return key == "" })...)
	}
	if s := a.LabelSelector; s != nil {
		all = append(all, reviewSelector(p.Child("labelSelector"), s.RawSelector, s.Requirements, nil)...)
	}
	return all
}

func reviewSelector(p *field.Path, raw string, list []metav1.LabelSelectorRequirement, badKey func(string) bool) errs {
	switch {
	case raw != "" && len(list) > 0:
		return errs{field.Invalid(p.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && len(list) == 0:
		return errs{field.Required(p.Child("requirements"), "when "+p.String()+" is specified, requirements or rawSelector is required")}
	}
	var all errs
	for i, r := range list {
		at := p.Child("requirements").Index(i)
		if badKey == nil {
			all = append(all, metavalidation.ValidateLabelSelectorRequirement(r,
				metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: true}, at)...)
			continue
		}
		if badKey(r.Key) {
			all = append(all, field.Required(at.Child("key"), "must be specified"))
		}
		values := at.Child("values")
		switch r.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(r.Values) == 0 {
				all = append(all, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				all = append(all, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
			}
		default:
			all = append(all, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
		}
	}
	return all
}

func subject(s *authorization.SubjectAccessReviewSpec) errs {
	if s.User == "" && len(s.Groups) == 0 {
		return errs{field.Invalid(specPath.Child("user"), s.User, "at least one of user or group must be specified")}
	}
	return nil
}

// SubjectAccessReview checks a question about someone's rights.
func SubjectAccessReview(r *authorization.SubjectAccessReview) field.ErrorList {
	return append(subject(&r.Spec), access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)...)
}

// SelfSubjectAccessReview checks a question about the caller's rights.
func SelfSubjectAccessReview(r *authorization.SelfSubjectAccessReview) field.ErrorList {
	return access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
}

// LocalSubjectAccessReview checks a question about someone's rights in one namespace.
func LocalSubjectAccessReview(r *authorization.LocalSubjectAccessReview) errs {
	all := append(subject(&r.Spec), access(&r.ObjectMeta, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		all = append(all, field.Invalid(specPath.Child("resourceAttributes", "namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if r.Spec.NonResourceAttributes != nil {
		all = append(all, field.Invalid(specPath.Child("nonResourceAttributes"), r.Spec.NonResourceAttributes,
			"disallowed on this kind of request"))
	}
	return all
}
