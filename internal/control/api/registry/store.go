package registry

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/berth-dev/berth/internal/control/api/table"
)

// NewStorages implements Resource: the object, and its status where there is one.
func (k *Kind[T]) NewStorages(s *runtime.Scheme, opts generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	store, err := k.NewStore(s, opts)
	if err != nil {
		return nil, err
	}
	out := map[string]rest.Storage{k.Resource: store}
	if k.HasStatus {
		out[k.Resource+"/status"] = k.NewStatus(store)
	}
	return out, nil
}

// Store is the storage of a kind's objects, with the names under which kubectl knows it.
type Store struct {
	*registry.Store
	shortNames, categories []string
}

func (s *Store) ShortNames() []string { return s.shortNames }
func (s *Store) Categories() []string { return s.categories }

// NewStore builds the storage of the object itself.
func (k *Kind[T]) NewStore(s *runtime.Scheme, opts generic.RESTOptionsGetter) (*Store, error) {
	newObject, newList, err := k.newFuncs(s)
	if err != nil {
		return nil, err
	}
	var strat strategies = k.strategy(s)
	if k.CheckGracefulDelete != nil {
		strat = gracefulStrategy[T]{k.strategy(s)}
	}
	store := &registry.Store{
		NewFunc:                   newObject,
		NewListFunc:               newList,
		DefaultQualifiedResource:  k.storedAs(),
		SingularQualifiedResource: schema.GroupResource{Group: k.storedAs().Group, Resource: k.singularName()},
		CreateStrategy:            strat,
		UpdateStrategy:            strat,
		DeleteStrategy:            strat,
		ResetFieldsStrategy:       strat,
		ReturnDeletedObject:       k.ReturnDeletedObject,
		TableConvertor:            table.Convertor(k.GroupResource(), k.Table),
	}
	if k.TTL > 0 {
		seconds := uint64(k.TTL.Seconds())
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	o := k.Options
	o.RESTOptions = opts
	o.AttrFunc = k.GetAttrs
	if err := store.CompleteWithOptions(&o); err != nil {
		return nil, fmt.Errorf("storing %s: %w", k.GroupResource(), err)
	}
	return &Store{Store: store, shortNames: k.ShortNames, categories: k.Categories}, nil
}

// NewStatus returns the status subresource of main.
func (k *Kind[T]) NewStatus(main *Store) *Subresource {
	return k.NewSubresource(main, k.statusEndpoint())
}

// NewSubresource returns the endpoint that updates main's objects in its own
// way. The two share the storage.
func (k *Kind[T]) NewSubresource(main *Store, e Endpoint[T]) *Subresource {
	store := *main.Store
	s := k.endpointStrategy(store.CreateStrategy, e)
	store.CreateStrategy, store.UpdateStrategy, store.ResetFieldsStrategy = s, s, s
	store.BeginCreate, store.BeginUpdate = nil, nil
	return &Subresource{store: &store}
}

// Subresource reads a store and updates it under another strategy; create and
// delete stay with the main resource. It serves /status, /approval, /resize,
// /ephemeralcontainers and /finalize.
type Subresource struct {
	store *registry.Store
}

func (r *Subresource) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the main resource owns the storage.
func (r *Subresource) Destroy() {}

func (r *Subresource) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update never creates: a subresource of nothing does not exist.
func (r *Subresource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

func (r *Subresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *Subresource) ConvertToTable(ctx context.Context, object runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}
