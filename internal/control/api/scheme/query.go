package scheme

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// addQueryOptions lets the subresources that take their options from the URL
// (log, exec, attach, portforward, proxy) read them.
func addQueryOptions(s *runtime.Scheme) error {
	for _, options := range []any{
		(*corev1.PodLogOptions)(nil),
		(*corev1.PodExecOptions)(nil),
		(*corev1.PodAttachOptions)(nil),
		(*corev1.PodPortForwardOptions)(nil),
		(*corev1.PodProxyOptions)(nil),
		(*corev1.NodeProxyOptions)(nil),
		(*corev1.ServiceProxyOptions)(nil),
	} {
		err := s.AddConversionFunc((*url.Values)(nil), options, func(from, to any, scope conversion.Scope) error {
			return fromQuery(*from.(*url.Values), reflect.ValueOf(to).Elem(), scope)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fromQuery fills the fields of a flat options struct from the query
// parameters named by their JSON tags. Absent parameters leave zero values.
func fromQuery(query url.Values, out reflect.Value, scope conversion.Scope) error {
	typ := out.Type()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		values, given := query[name]
		if name == "" || !given || len(values) == 0 {
			out.Field(i).SetZero()
			continue
		}
		if err := fromValues(values, out.Field(i).Addr().Interface(), scope); err != nil {
			return fmt.Errorf("query parameter %s: %w", name, err)
		}
	}
	return nil
}

func fromValues(values []string, field any, scope conversion.Scope) error {
	switch field := field.(type) {
	case *string:
		return runtime.Convert_Slice_string_To_string(&values, field, scope)
	case **string:
		*field = &values[0]
		return nil
	case *bool:
		return runtime.Convert_Slice_string_To_bool(&values, field, scope)
	case **bool:
		return runtime.Convert_Slice_string_To_Pointer_bool(&values, field, scope)
	case *int64:
		return runtime.Convert_Slice_string_To_int64(&values, field, scope)
	case **int64:
		return runtime.Convert_Slice_string_To_Pointer_int64(&values, field, scope)
	case *[]string:
		*field = append([]string(nil), values...)
		return nil
	case *[]int32:
		return metav1.Convert_Slice_string_To_Slice_int32(&values, field, scope)
	case **metav1.Time:
		return metav1.Convert_Slice_string_To_Pointer_v1_Time(&values, field, scope)
	}
	return fmt.Errorf("no conversion to %T", field)
}
