package registry

import (
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// Convert registers a pair of functions that cannot fail.
func Convert[A, B any](s *runtime.Scheme, there func(*A, *B), back func(*B, *A)) error {
	err := s.AddConversionFunc((*A)(nil), (*B)(nil), func(a, b any, _ conversion.Scope) error {
		there(a.(*A), b.(*B))
		return nil
	})
	if err != nil {
		return err
	}
	return s.AddConversionFunc((*B)(nil), (*A)(nil), func(b, a any, _ conversion.Scope) error {
		back(b.(*B), a.(*A))
		return nil
	})
}

// ConvertItems keeps nil apart from empty, which JSON shows.
func ConvertItems[A, B any](in []A, item func(*A, *B)) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i := range in {
		item(&in[i], &out[i])
	}
	return out
}
