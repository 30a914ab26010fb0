// Package scheme registers the API types the server knows. Each versioned type
// is its own hub: it is registered for its group version and for the internal
// version of its group as well, so that converting between the two only sets
// the kind. Types that have no hub of their own (the newer events API) are
// converted by hand in this package.
package scheme

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/berth-dev/berth/internal/control/api/kinds"
)

// family is one group version and how its types are added.
type family struct {
	gv  schema.GroupVersion
	add func(*runtime.Scheme) error
}

// families lists what is served (and admission/v1, which webhooks speak), in
// the order of preference within each group.
var families = []family{
	{gv: corev1.SchemeGroupVersion, add: corev1.AddToScheme},
	{gv: admissionv1.SchemeGroupVersion, add: admissionv1.AddToScheme},
	{gv: admissionregistrationv1.SchemeGroupVersion, add: admissionregistrationv1.AddToScheme},
	{gv: appsv1.SchemeGroupVersion, add: appsv1.AddToScheme},
	{gv: authenticationv1.SchemeGroupVersion, add: authenticationv1.AddToScheme},
	{gv: authorizationv1.SchemeGroupVersion, add: authorizationv1.AddToScheme},
	{gv: autoscalingv2.SchemeGroupVersion, add: autoscalingv2.AddToScheme},
	{gv: autoscalingv1.SchemeGroupVersion, add: autoscalingv1.AddToScheme},
	{gv: batchv1.SchemeGroupVersion, add: batchv1.AddToScheme},
	{gv: certificatesv1.SchemeGroupVersion, add: certificatesv1.AddToScheme},
	{gv: coordinationv1.SchemeGroupVersion, add: coordinationv1.AddToScheme},
	{gv: discoveryv1.SchemeGroupVersion, add: discoveryv1.AddToScheme},
	{gv: eventsv1.SchemeGroupVersion, add: eventsv1.AddToScheme},
	{gv: flowcontrolv1.SchemeGroupVersion, add: flowcontrolv1.AddToScheme},
	{gv: networkingv1.SchemeGroupVersion, add: networkingv1.AddToScheme},
	{gv: nodev1.SchemeGroupVersion, add: nodev1.AddToScheme},
	{gv: policyv1.SchemeGroupVersion, add: policyv1.AddToScheme},
	{gv: rbacv1.SchemeGroupVersion, add: rbacv1.AddToScheme},
	{gv: resourcev1.SchemeGroupVersion, add: resourcev1.AddToScheme},
	{gv: schedulingv1.SchemeGroupVersion, add: schedulingv1.AddToScheme},
	{gv: storagev1.SchemeGroupVersion, add: storagev1.AddToScheme},
}

// Set is a scheme with the codecs made from it.
type Set struct {
	Scheme         *runtime.Scheme
	Codecs         serializer.CodecFactory
	ParameterCodec runtime.ParameterCodec
}

// Shared returns the process-wide Set, built on first use so that commands
// that never serve the API do not pay for it.
var Shared = sync.OnceValue(func() *Set {
	set, err := newScheme(kinds.AddToScheme)
	if err != nil {
		panic(fmt.Sprintf("building the API scheme: %v", err))
	}
	return set
})

// newScheme builds a fresh Set. add functions are applied to the scheme last.
func newScheme(add ...func(*runtime.Scheme) error) (*Set, error) {
	s := runtime.NewScheme()
	if err := metainternal.AddToScheme(s); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	if err := metav1.AddMetaToScheme(s); err != nil {
		return nil, err
	}
	for _, f := range families {
		if err := f.register(s); err != nil {
			return nil, fmt.Errorf("registering %s: %w", f.gv, err)
		}
	}
	if err := addEviction(s); err != nil {
		return nil, err
	}
	if err := addQueryOptions(s); err != nil {
		return nil, err
	}
	for _, fn := range add {
		if err := fn(s); err != nil {
			return nil, err
		}
	}
	codecs := serializer.NewCodecFactory(s,
		serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf())
	return &Set{Scheme: s, Codecs: codecs, ParameterCodec: runtime.NewParameterCodec(s)}, nil
}

// foreign are the kinds of a group version whose hub is a type of another
// version or group.
func foreign(gv schema.GroupVersion) map[string]bool {
	out := map[string]bool{}
	for _, k := range kinds.All() {
		if i := k.Info(); i.GroupVersion == gv && !i.StoredAs.Empty() {
			out[i.Kind], out[i.Kind+"List"] = true, true
		}
	}
	return out
}

func (f family) register(s *runtime.Scheme) error {
	if err := f.add(s); err != nil {
		return err
	}
	internal := schema.GroupVersion{Group: f.gv.Group, Version: runtime.APIVersionInternal}
	metaPackage := reflect.TypeFor[metav1.ObjectMeta]().PkgPath()
	types := s.KnownTypes(f.gv)
	elsewhere := foreign(f.gv)
	names := make([]string, 0, len(types))
	for kind, typ := range types {
		if typ.PkgPath() != metaPackage && !elsewhere[kind] {
			names = append(names, kind)
		}
	}
	slices.SortFunc(names, strings.Compare)
	for _, kind := range names {
		obj, ok := reflect.New(types[kind]).Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("%s is not an API object", types[kind])
		}
		s.AddKnownTypeWithName(internal.WithKind(kind), obj)
	}
	return nil
}
