package volume

import (
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// kindName is the name of the field that a volume sets.
func kindName(s *v1.VolumeSource) string {
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "of no kind"
}

// unavailable says that an error tells nothing about the object: the API
// server could not be asked.
func unavailable(err error) bool {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsGone(err) {
		return false
	}
	if apierrors.ReasonForError(err) == "" {
		return true // never reached a server
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err)
}
