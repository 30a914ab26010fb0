package api

import (
	"context"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// checks validates objects; it is package validate in the server and nothing
// in tests of the strategy itself.
type checks struct {
	create func(obj runtime.Object) field.ErrorList
	update func(obj, old runtime.Object) field.ErrorList
	status func(obj, old runtime.Object) field.ErrorList
}

// strategy is a Row in the form the registry library asks for. It serves
// create, update and delete of the object itself.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	row    *Row
	checks checks
}

func newStrategy(row *Row, typer runtime.ObjectTyper, checks checks) *strategy {
	return &strategy{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator, row: row, checks: checks}
}

func (s *strategy) NamespaceScoped() bool                         { return !s.row.ClusterScoped }
func (s *strategy) AllowCreateOnUpdate(context.Context) bool      { return s.row.CreateByPut }
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.row.NeedsResourceVersion }
func (s *strategy) Canonicalize(runtime.Object)                   {}

func (s *strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.row.GarbageCollection != "" {
		return s.row.GarbageCollection
	}
	return rest.DeleteDependents
}

func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.row.HasStatus && !s.row.KeepStatusOnCreate {
		part(obj, "Status").SetZero()
	}
	if s.row.Generation != generationNone {
		accessor(obj).SetGeneration(1)
	}
	if s.row.PrepareCreate != nil {
		s.row.PrepareCreate(ctx, obj)
	}
}

func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.row.HasStatus {
		part(obj, "Status").Set(part(old.DeepCopyObject(), "Status"))
	}
	if s.row.PrepareUpdate != nil {
		s.row.PrepareUpdate(ctx, obj, old)
	}
	if s.row.Generation.bumps(obj, old) {
		accessor(obj).SetGeneration(accessor(old).GetGeneration() + 1)
	}
}

func (s *strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if s.checks.create != nil {
		errs = s.checks.create(obj)
	}
	return append(errs, s.extra(obj)...)
}

func (s *strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if s.checks.update != nil {
		errs = s.checks.update(obj, old)
	}
	return append(errs, s.extra(obj)...)
}

func (s *strategy) extra(obj runtime.Object) field.ErrorList {
	if s.row.Validate == nil {
		return nil
	}
	return s.row.Validate(obj)
}

func (s *strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	if s.row.Warnings == nil {
		return nil
	}
	return s.row.Warnings(obj, nil)
}

func (s *strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	if s.row.Warnings == nil {
		return nil
	}
	return s.row.Warnings(obj, old)
}

// GetResetFields tells server-side apply which fields a write to the object
// never owns, because the rules above put the stored value back.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.row.HasStatus {
		return nil
	}
	return s.row.eachVersion(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
}

// eachVersion says the same of each version of the row's objects.
func (r *Row) eachVersion(set *fieldpath.Set) map[fieldpath.APIVersion]*fieldpath.Set {
	all := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(r.GV.String()): set}
	for _, gv := range r.OtherVersions {
		all[fieldpath.APIVersion(gv.String())] = set
	}
	return all
}

// statusStrategy serves the status subresource of a row.
type statusStrategy struct {
	*strategy
	reset *fieldpath.Set
}

// newStatusStrategy lists the top-level fields of the type once: all of them
// but metadata and status stay as stored.
func newStatusStrategy(s *strategy, example runtime.Object) *statusStrategy {
	reset := fieldpath.NewSet()
	typ := reflect.TypeOf(example).Elem()
	for i := range typ.NumField() {
		if f := typ.Field(i); kept(f) {
			reset.Insert(fieldpath.MakePathOrDie(jsonName(f)))
		}
	}
	if s.row.StatusKeeps&keepLabels != 0 {
		reset.Insert(fieldpath.MakePathOrDie("metadata", "labels"))
	}
	if s.row.StatusKeeps&keepOwners != 0 {
		reset.Insert(fieldpath.MakePathOrDie("metadata", "ownerReferences"))
	}
	if s.row.StatusKeeps&keepMeta != 0 {
		reset.Insert(fieldpath.MakePathOrDie("metadata"))
	}
	return &statusStrategy{strategy: s, reset: reset}
}

func (s *statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	stored := old.DeepCopyObject()
	to, from := reflect.ValueOf(obj).Elem(), reflect.ValueOf(stored).Elem()
	for i := range to.NumField() {
		if kept(to.Type().Field(i)) {
			to.Field(i).Set(from.Field(i))
		}
	}
	if s.row.StatusKeeps&keepLabels != 0 {
		accessor(obj).SetLabels(accessor(stored).GetLabels())
	}
	if s.row.StatusKeeps&keepOwners != 0 {
		accessor(obj).SetOwnerReferences(accessor(stored).GetOwnerReferences())
	}
	if s.row.StatusKeeps&keepMeta != 0 {
		m, was := accessor(obj), accessor(stored)
		m.SetLabels(was.GetLabels())
		m.SetAnnotations(was.GetAnnotations())
		m.SetOwnerReferences(was.GetOwnerReferences())
		m.SetFinalizers(was.GetFinalizers())
	}
	if s.row.PrepareStatus != nil {
		s.row.PrepareStatus(ctx, obj, old)
	}
}

func (s *statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if s.checks.status != nil {
		errs = s.checks.status(obj, old)
	}
	if s.row.ValidateStatus != nil {
		errs = append(errs, s.row.ValidateStatus(obj, old)...)
	}
	return errs
}

func (s *statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s *statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.row.eachVersion(s.reset)
}

// kept says whether a status write puts the stored value of a top-level field
// back.
func kept(f reflect.StructField) bool {
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

// bumps reports whether the change from old to obj counts as a new
// generation.
func (g generationRule) bumps(obj, old runtime.Object) bool {
	changed := func(field string) bool {
		return !apiequality.Semantic.DeepEqual(part(obj, field).Interface(), part(old, field).Interface())
	}
	switch g {
	case generationSpec:
		return changed("Spec")
	case generationSpecAndAnnotations:
		return changed("Spec") ||
			!apiequality.Semantic.DeepEqual(accessor(obj).GetAnnotations(), accessor(old).GetAnnotations())
	case generationContent, generationAll:
		typ := reflect.TypeOf(obj).Elem()
		for i := range typ.NumField() {
			if f := typ.Field(i); kept(f) && changed(f.Name) {
				return true
			}
		}
		return g == generationAll && metadataChanged(accessor(obj), accessor(old))
	}
	return false
}

// metadataChanged says whether a writer changed metadata.
func metadataChanged(m, was metav1.Object) bool {
	return !apiequality.Semantic.DeepEqual(m.GetLabels(), was.GetLabels()) || !apiequality.Semantic.DeepEqual(m.GetAnnotations(), was.GetAnnotations()) ||
		!apiequality.Semantic.DeepEqual(m.GetOwnerReferences(), was.GetOwnerReferences()) || !apiequality.Semantic.DeepEqual(m.GetFinalizers(), was.GetFinalizers())
}

// part is a top-level field of an object.
func part(obj runtime.Object, field string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(field)
}

// accessor never fails: every type with a row embeds ObjectMeta.
func accessor(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m
}
