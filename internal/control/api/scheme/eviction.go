package scheme

import (
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/internal/control/api/registry"
)

// addEviction lets clients from before policy/v1 evict pods: their Eviction has
// the same fields. Nothing else of policy/v1beta1 is known.
func addEviction(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(policyv1beta1.SchemeGroupVersion.WithKind("Eviction"), &policyv1beta1.Eviction{})
	return registry.Convert(s,
		func(in *policyv1beta1.Eviction, out *policyv1.Eviction) {
			out.ObjectMeta, out.DeleteOptions = in.ObjectMeta, in.DeleteOptions
		},
		func(in *policyv1.Eviction, out *policyv1beta1.Eviction) {
			out.ObjectMeta, out.DeleteOptions = in.ObjectMeta, in.DeleteOptions
		})
}
