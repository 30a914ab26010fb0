package validate

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func PodTemplate(t *v1.PodTemplate) errs {
	return podTemplate(field.NewPath("template"), &t.Template)
}
