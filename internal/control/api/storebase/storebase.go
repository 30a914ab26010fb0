// Package storebase holds what the special storages share: a strategy made of plain functions, the store builder,
// the status subresource, and small readers over a store.
//
// A strategy upstream is one type with a dozen methods per resource. Here it is one struct: a resource fills in the
// functions in which it differs, and everything it leaves empty does the ordinary thing.
package storebase

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Kit carries what every storage needs from the rest of the API server. All fields but the validators are required;
// a nil validator accepts everything (tests of one storage alone).
type Kit struct {
	// Scheme names the kinds of the objects; versioned types are registered as their own hub.
	Scheme *runtime.Scheme
	// Table returns the printer of a resource.
	Table func(schema.GroupResource) rest.TableConvertor
	// Attrs returns the labels and selectable fields of a resource's objects.
	Attrs func(schema.GroupResource) storage.AttrFunc

	// Create validates a new object, Update a replacement of the main resource, Status a write to the status
	// subresource. Each sees the object after the strategy has reset what the request may not touch.
	Create         func(obj runtime.Object) field.ErrorList
	Update, Status ChangeCheck
}

// ChangeCheck validates a change; old is what is stored.
type ChangeCheck func(obj, old runtime.Object) field.ErrorList

// Strategy is a rest.RESTCreateStrategy, RESTUpdateStrategy, RESTDeleteStrategy and ResetFieldsStrategy made of
// functions. Nil functions do nothing.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator

	// Namespaced says the scope. CreateOnUpdate lets a PUT to a missing name create the object. Conditional demands a
	// resourceVersion on every update.
	Namespaced     bool
	CreateOnUpdate bool
	Conditional    bool
	// Policy is what happens to dependents when the client names no policy.
	Policy rest.GarbageCollectionPolicy

	PrepareNew    func(ctx context.Context, obj runtime.Object)
	PrepareChange func(ctx context.Context, obj, old runtime.Object)
	CheckNew      func(obj runtime.Object) field.ErrorList
	CheckChange   ChangeCheck
	WarnNew       func(ctx context.Context, obj runtime.Object) []string
	WarnChange    func(ctx context.Context, obj, old runtime.Object) []string

	// Reset lists, per API version, the fields that this endpoint does not let the client own (server-side apply).
	Reset map[fieldpath.APIVersion]*fieldpath.Set
}

// Base returns the ordinary strategy of a resource: validated by the kit, unconditional updates allowed.
func (k Kit) Base(namespaced bool) Strategy {
	return Strategy{
		ObjectTyper:   k.Scheme,
		NameGenerator: names.SimpleNameGenerator,
		Namespaced:    namespaced,
		Policy:        rest.DeleteDependents,
		CheckNew:      k.Create,
		CheckChange:   k.Update,
	}
}

// StatusOf derives the strategy of the status subresource: same scope, status validation, and keep restores whatever
// a status write must not change.
func (k Kit) StatusOf(base Strategy, keep func(ctx context.Context, obj, old runtime.Object), reset map[fieldpath.APIVersion]*fieldpath.Set) Strategy {
	base.CreateOnUpdate = false
	base.PrepareChange = keep
	base.CheckChange = k.Status
	base.WarnNew, base.WarnChange = nil, nil
	base.Reset = reset
	return base
}

func (s Strategy) NamespaceScoped() bool                         { return s.Namespaced }
func (s Strategy) AllowCreateOnUpdate(context.Context) bool      { return s.CreateOnUpdate }
func (s Strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.Conditional }
func (s Strategy) Canonicalize(runtime.Object)                   {}

func (s Strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return s.Policy
}

func (s Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return s.Reset }

func (s Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.PrepareNew != nil {
		s.PrepareNew(ctx, obj)
	}
}

func (s Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.PrepareChange != nil {
		s.PrepareChange(ctx, obj, old)
	}
}

func (s Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	if s.CheckNew == nil {
		return nil
	}
	return s.CheckNew(obj)
}

func (s Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if s.CheckChange == nil {
		return nil
	}
	return s.CheckChange(obj, old)
}

func (s Strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.WarnNew == nil {
		return nil
	}
	return s.WarnNew(ctx, obj)
}

func (s Strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.WarnChange == nil {
		return nil
	}
	return s.WarnChange(ctx, obj, old)
}

// Fields builds the reset set of one API version: Fields("v1", "status") resets .status, and a dotted path such as
// "status.conditions" goes deeper.
func Fields(version string, paths ...[]string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		parts := make([]any, len(p))
		for i := range p {
			parts[i] = p[i]
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(version): set}
}

// All is the strategy interface a store needs; Strategy satisfies it, and so does a type that embeds Strategy to add
// graceful deletion.
type All interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// Spec describes a store.
type Spec struct {
	Resource schema.GroupResource
	Singular string
	New      func() runtime.Object
	NewList  func() runtime.Object
	Strategy All
	// ReturnDeleted makes DELETE answer with the object rather than with a Status.
	ReturnDeleted bool
	// Trigger and Indexers let the watch cache serve hot selectors (pods by node) from an index.
	Options generic.StoreOptions
}

// NewStore builds and completes a registry store.
func (k Kit) NewStore(opts generic.RESTOptionsGetter, s Spec) (*registry.Store, error) {
	store := &registry.Store{
		NewFunc:                   s.New,
		NewListFunc:               s.NewList,
		DefaultQualifiedResource:  s.Resource,
		SingularQualifiedResource: schema.GroupResource{Group: s.Resource.Group, Resource: s.Singular},
		CreateStrategy:            s.Strategy,
		UpdateStrategy:            s.Strategy,
		DeleteStrategy:            s.Strategy,
		ResetFieldsStrategy:       s.Strategy,
		ReturnDeletedObject:       s.ReturnDeleted,
		TableConvertor:            k.Table(s.Resource),
	}
	o := s.Options
	o.RESTOptions = opts
	if o.AttrFunc == nil {
		o.AttrFunc = k.Attrs(s.Resource)
	}
	if err := store.CompleteWithOptions(&o); err != nil {
		return nil, err
	}
	return store, nil
}

// Resource is a store with the names under which kubectl knows it.
type Resource struct {
	*registry.Store
	Short []string
	In    []string
}

func (r *Resource) ShortNames() []string { return r.Short }
func (r *Resource) Categories() []string { return r.In }

// Subresource reads a store and updates it under another strategy; create and delete stay with the main resource.
// It serves /status, /approval, /resize, /ephemeralcontainers and /finalize.
type Subresource struct {
	store *registry.Store
}

// NewSubresource returns the endpoint that updates main's objects under s. The two share the storage.
func NewSubresource(main *registry.Store, s All) *Subresource {
	store := *main
	store.CreateStrategy = s
	store.UpdateStrategy = s
	store.ResetFieldsStrategy = s
	store.BeginCreate, store.BeginUpdate = nil, nil
	return &Subresource{store: &store}
}

func (r *Subresource) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the main resource owns the storage.
func (r *Subresource) Destroy() {}

func (r *Subresource) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update never creates: a subresource of nothing does not exist.
func (r *Subresource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, createValidation, updateValidation, false, options)
}

func (r *Subresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *Subresource) ConvertToTable(ctx context.Context, object runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

func (r *Subresource) NamespaceScoped() bool { return r.store.NamespaceScoped() }
