package registry

import (
	"context"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/berth-dev/berth/internal/control/api/validate"
)

// strategy is a Kind in the form the registry library asks for. It serves
// create, update and delete of the object itself.
type strategy[T object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	kind *Kind[T]
}

// gracefulStrategy is the strategy of a kind whose objects are deleted gracefully.
type gracefulStrategy[T object] struct{ *strategy[T] }

func (s gracefulStrategy[T]) CheckGracefulDelete(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	return s.kind.CheckGracefulDelete(ctx, obj.(T), options)
}

// strategies is what a store needs of a strategy.
type strategies interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

func (k *Kind[T]) strategy(typer runtime.ObjectTyper) *strategy[T] {
	return &strategy[T]{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator, kind: k}
}

// Strategy implements Resource.
func (k *Kind[T]) Strategy(typer runtime.ObjectTyper) rest.RESTCreateUpdateStrategy {
	return k.strategy(typer)
}

// StatusStrategy implements Resource.
func (k *Kind[T]) StatusStrategy(typer runtime.ObjectTyper) rest.RESTUpdateStrategy {
	if !k.HasStatus {
		return nil
	}
	return k.endpointStrategy(typer, k.statusEndpoint())
}

func (k *Kind[T]) endpointStrategy(typer runtime.ObjectTyper, e Endpoint[T]) *endpointStrategy[T] {
	return &endpointStrategy[T]{strategy: k.strategy(typer), endpoint: e, reset: fieldSet(e.ResetFields)}
}

func (s *strategy[T]) NamespaceScoped() bool                    { return s.kind.NamespaceScoped }
func (s *strategy[T]) AllowCreateOnUpdate(context.Context) bool { return s.kind.AllowCreateOnUpdate }
func (s *strategy[T]) AllowUnconditionalUpdate(context.Context) bool {
	return s.kind.AllowUnconditionalUpdate
}

func (s *strategy[T]) Canonicalize(obj runtime.Object) {
	if s.kind.Canonicalize != nil {
		s.kind.Canonicalize(obj.(T))
	}
}

func (s *strategy[T]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if p := s.kind.DefaultGarbageCollectionPolicy; p != "" {
		return p
	}
	return rest.DeleteDependents
}

func (s *strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.kind.HasStatus && !s.kind.KeepStatusOnCreate {
		part(obj, "Status").SetZero()
	}
	if s.kind.Generation != NoGeneration {
		obj.(T).SetGeneration(1)
	}
	if s.kind.PrepareForCreate != nil {
		s.kind.PrepareForCreate(ctx, obj.(T))
	}
}

func (s *strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.kind.HasStatus {
		part(obj, "Status").Set(part(old.DeepCopyObject(), "Status"))
	}
	if s.kind.PrepareForUpdate != nil {
		s.kind.PrepareForUpdate(ctx, obj.(T), old.(T))
	}
	if s.kind.Generation.raises(obj.(T), old.(T)) {
		obj.(T).SetGeneration(old.(T).GetGeneration() + 1)
	}
}

func (s *strategy[T]) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return s.kind.CheckCreate(obj)
}

func (s *strategy[T]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return s.kind.CheckUpdate(obj, old)
}

// CheckCreate validates a new object.
func (k *Kind[T]) CheckCreate(obj runtime.Object) field.ErrorList {
	name := k.ValidateName
	if name == nil {
		name = apivalidation.NameIsDNSSubdomain
	}
	all := validate.ObjectMeta(obj.(T), k.NamespaceScoped, name)
	if k.Validate != nil {
		all = append(all, k.Validate(obj.(T))...)
	}
	return all
}

// CheckUpdate validates a change of the object; old is what is stored.
func (k *Kind[T]) CheckUpdate(obj, old runtime.Object) field.ErrorList {
	all := validate.ObjectMetaUpdate(obj.(T), old.(T))
	check := k.ValidateUpdate
	if check == nil {
		if k.Validate == nil {
			return all
		}
		check = func(obj, _ T) field.ErrorList { return k.Validate(obj) }
	}
	return append(all, validate.Ratcheted(check, obj.(T), old.(T))...)
}

// CheckStatusUpdate validates a write to /status; the caller has put back what
// that may not change.
func (k *Kind[T]) CheckStatusUpdate(obj, old runtime.Object) field.ErrorList {
	all := validate.ObjectMetaUpdate(obj.(T), old.(T))
	if k.ValidateStatusUpdate == nil {
		return all
	}
	return append(all, validate.Ratcheted(k.ValidateStatusUpdate, obj.(T), old.(T))...)
}

func (s *strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.kind.WarningsOnCreate == nil {
		return nil
	}
	return s.kind.WarningsOnCreate(ctx, obj.(T))
}

func (s *strategy[T]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.kind.WarningsOnUpdate == nil {
		return nil
	}
	return s.kind.WarningsOnUpdate(ctx, obj.(T), old.(T))
}

// GetResetFields tells server-side apply which fields a write to the object
// never owns, because the rules above put the stored value back.
func (s *strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldSet(s.kind.ResetFields)
	if s.kind.HasStatus {
		set.Insert(fieldpath.MakePathOrDie("status"))
	}
	return s.kind.eachVersion(set)
}

// eachVersion says the same of each version of the kind's objects; nil of nothing.
func (k *Kind[T]) eachVersion(set *fieldpath.Set) map[fieldpath.APIVersion]*fieldpath.Set {
	if set.Empty() {
		return nil
	}
	all := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(k.GroupVersion.String()): set}
	for _, gv := range k.OtherVersions {
		all[fieldpath.APIVersion(gv.String())] = set
	}
	return all
}

func fieldSet(paths [][]string) *fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		parts := make([]any, len(p))
		for i := range p {
			parts[i] = p[i]
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	return set
}

// Endpoint is how a subresource writes its part of the object.
type Endpoint[T object] struct {
	// PrepareForUpdate puts back what this endpoint may not change.
	PrepareForUpdate func(ctx context.Context, obj, old T)
	// ValidateUpdate is the whole check, metadata included.
	ValidateUpdate func(obj, old T) field.ErrorList
	// ResetFields are what a write through this endpoint never owns.
	ResetFields [][]string
}

// endpointStrategy serves updates through a subresource; everything else is as
// for the object, without its warnings and its right to create.
type endpointStrategy[T object] struct {
	*strategy[T]
	endpoint Endpoint[T]
	reset    *fieldpath.Set
}

func (s *endpointStrategy[T]) AllowCreateOnUpdate(context.Context) bool { return false }

func (s *endpointStrategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.endpoint.PrepareForUpdate(ctx, obj.(T), old.(T))
}

func (s *endpointStrategy[T]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return s.endpoint.ValidateUpdate(obj.(T), old.(T))
}

func (s *endpointStrategy[T]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (s *endpointStrategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s *endpointStrategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.kind.eachVersion(s.reset)
}

// statusEndpoint writes the status: all other top-level fields stay as stored,
// and of the metadata what StatusResets names.
func (k *Kind[T]) statusEndpoint() Endpoint[T] {
	var reset [][]string
	typ := reflect.TypeFor[T]().Elem()
	for i := range typ.NumField() {
		if f := typ.Field(i); isContent(f) {
			reset = append(reset, []string{jsonName(f)})
		}
	}
	return Endpoint[T]{
		PrepareForUpdate: func(ctx context.Context, obj, old T) {
			stored := old.DeepCopyObject().(T)
			to, from := reflect.ValueOf(obj).Elem(), reflect.ValueOf(stored).Elem()
			for i := range to.NumField() {
				if isContent(to.Type().Field(i)) {
					to.Field(i).Set(from.Field(i))
				}
			}
			k.StatusResets.restore(obj, stored)
			if k.PrepareForStatusUpdate != nil {
				k.PrepareForStatusUpdate(ctx, obj, old)
			}
		},
		ValidateUpdate: func(obj, old T) field.ErrorList { return k.CheckStatusUpdate(obj, old) },
		ResetFields:    append(reset, k.StatusResets.paths()...),
	}
}

// MetadataParts is a set of metadata fields.
type MetadataParts int

const (
	Labels MetadataParts = 1 << iota
	// Metadata is everything that writers of metadata can change.
	Metadata
)

func (p MetadataParts) paths() (out [][]string) {
	if p&Labels != 0 {
		out = append(out, []string{"metadata", "labels"})
	}
	if p&Metadata != 0 {
		out = append(out, []string{"metadata"})
	}
	return out
}

func (p MetadataParts) restore(obj, stored metav1.Object) {
	if p&(Labels|Metadata) != 0 {
		obj.SetLabels(stored.GetLabels())
	}
	if p&Metadata != 0 {
		obj.SetAnnotations(stored.GetAnnotations())
		obj.SetOwnerReferences(stored.GetOwnerReferences())
		obj.SetFinalizers(stored.GetFinalizers())
	}
}

// GenerationRule says which changes raise metadata.generation.
type GenerationRule int

const (
	// NoGeneration never touches the field.
	NoGeneration GenerationRule = iota
	// OnSpec raises it on a change of the field Spec.
	OnSpec
	// OnSpecAndAnnotations raises it on Spec or annotations (Deployment, whose
	// controller copies annotations to ReplicaSets).
	OnSpecAndAnnotations
	// OnContent raises it on a change of anything but metadata and status, for
	// types without a Spec.
	OnContent
	// OnAll raises it on a change of anything but the server's own metadata.
	OnAll
	// Once sets 1 when the object is made and never raises it.
	Once
)

// raises reports whether the change from old to obj counts as a new generation.
func (g GenerationRule) raises(obj, old object) bool {
	changed := func(field string) bool {
		return !apiequality.Semantic.DeepEqual(part(obj, field).Interface(), part(old, field).Interface())
	}
	switch g {
	case OnSpec:
		return changed("Spec")
	case OnSpecAndAnnotations:
		return changed("Spec") || !apiequality.Semantic.DeepEqual(obj.GetAnnotations(), old.GetAnnotations())
	case OnContent, OnAll:
		typ := reflect.TypeOf(obj).Elem()
		for i := range typ.NumField() {
			if f := typ.Field(i); isContent(f) && changed(f.Name) {
				return true
			}
		}
		return g == OnAll && metadataChanged(obj, old)
	}
	return false
}

// metadataChanged says whether a writer changed metadata.
func metadataChanged(m, was metav1.Object) bool {
	return !apiequality.Semantic.DeepEqual(m.GetLabels(), was.GetLabels()) ||
		!apiequality.Semantic.DeepEqual(m.GetAnnotations(), was.GetAnnotations()) ||
		!apiequality.Semantic.DeepEqual(m.GetOwnerReferences(), was.GetOwnerReferences()) ||
		!apiequality.Semantic.DeepEqual(m.GetFinalizers(), was.GetFinalizers())
}

// isContent says whether a top-level field is neither metadata nor status.
func isContent(f reflect.StructField) bool {
	return f.Name != "Status" && f.Name != "TypeMeta" && f.Name != "ObjectMeta"
}

func jsonName(f reflect.StructField) string {
	name := f.Tag.Get("json")
	for i, c := range name {
		if c == ',' {
			return name[:i]
		}
	}
	return name
}

// part is a top-level field of an object.
func part(obj runtime.Object, field string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(field)
}
