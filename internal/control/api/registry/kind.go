// Package registry holds what the storages of all API kinds share. A Kind
// describes one kind in the words of the upstream registry; the package turns
// it into strategies, a store, the status subresource, a table and selectable
// fields.
//
// A strategy upstream is one type with a dozen methods per resource. Here it is
// one value: a kind fills in what it has of its own, and everything it leaves
// empty does the ordinary thing that the comment at the field says.
package registry

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/table"
)

// object is an API object with metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// Kind describes one kind of the API: everything the server must know to store
// it, check it and show it. T is the type that is stored. The functions see
// objects after defaulting.
type Kind[T object] struct {
	// GroupVersion and Kind name the type in the scheme; its list type is Kind + "List".
	GroupVersion schema.GroupVersion
	Kind         string
	// Resource is the plural name in URLs; SingularName is the lower case of
	// Kind if empty.
	Resource, SingularName string
	ShortNames             []string
	// Categories group resources for kubectl; "all" is the well-known one.
	Categories []string

	NamespaceScoped bool
	// AllowCreateOnUpdate lets a PUT to a missing name create the object.
	AllowCreateOnUpdate bool
	// AllowUnconditionalUpdate accepts an update that names no resource version.
	AllowUnconditionalUpdate bool
	// ReturnDeletedObject answers a DELETE with the object instead of a Status.
	ReturnDeletedObject bool
	// DefaultGarbageCollectionPolicy is what happens to dependents when a
	// DELETE does not say. Empty: they are deleted in the background.
	DefaultGarbageCollectionPolicy rest.GarbageCollectionPolicy

	// HasStatus gives the resource a status subresource: writes to the object
	// keep the stored status, writes to /status keep everything else but
	// metadata.
	HasStatus bool
	// KeepStatusOnCreate stores the status a new object carries instead of clearing it.
	KeepStatusOnCreate bool
	// StatusResets are the parts of the metadata that a status write may not change.
	StatusResets MetadataParts
	// Generation says which changes raise metadata.generation. None leaves the
	// field at zero.
	Generation GenerationRule

	// AddToScheme registers conversions, for a version that is not the stored
	// one. May be nil.
	AddToScheme func(*runtime.Scheme) error
	// Default fills in what a client left out. It must be pure and idempotent:
	// it runs at every decoding. Nil for a version that is not the stored one:
	// such a version brings its own in AddToScheme.
	Default func(obj T)

	// PrepareForCreate, PrepareForUpdate and PrepareForStatusUpdate run after
	// the rules above and before validation. They change only obj.
	PrepareForCreate       func(ctx context.Context, obj T)
	PrepareForUpdate       func(ctx context.Context, obj, old T)
	PrepareForStatusUpdate func(ctx context.Context, obj, old T)
	// Canonicalize brings a valid object into its normal form.
	Canonicalize func(obj T)
	// CheckGracefulDelete makes deletion graceful: it settles the grace period
	// in options, or answers false to delete at once.
	CheckGracefulDelete func(ctx context.Context, obj T, options *metav1.DeleteOptions) bool

	// ValidateName is the form of the name; nil: a DNS subdomain. The rest of
	// the metadata is checked for every kind.
	ValidateName apivalidation.ValidateNameFunc
	// Validate checks what is beside the metadata.
	Validate func(obj T) field.ErrorList
	// ValidateUpdate checks a change. Nil: the object must pass Validate,
	// whatever it was before.
	ValidateUpdate func(obj, old T) field.ErrorList
	// ValidateStatusUpdate checks a write to /status. Nil: there is nothing to
	// check beside the metadata.
	ValidateStatusUpdate func(obj, old T) field.ErrorList
	// WarningsOnCreate and WarningsOnUpdate are shown to anyone who writes the object.
	WarningsOnCreate func(ctx context.Context, obj T) []string
	WarningsOnUpdate func(ctx context.Context, obj, old T) []string
	// ResetFields are fields beside the status that a write to the object never
	// owns (server-side apply).
	ResetFields [][]string

	// Table is how kubectl shows the objects; empty: name and creation time.
	Table table.Layout
	// SelectableFields are what a field selector may name beside name and namespace.
	SelectableFields Fields[T]

	// TTL removes objects this long after their last write; 0 keeps them.
	TTL time.Duration
	// NoWatchCache serves lists and watches straight from etcd: for kinds that
	// are written often and read rarely, and for those that at most one or two
	// controllers ever watch. A cache costs memory, goroutines and a wake-up a
	// second even when no one asks.
	NoWatchCache bool
	// Options let the watch cache serve hot selectors from an index.
	Options generic.StoreOptions
	// StoredAs names the resource whose objects this one shows too, under
	// another group version; empty: its own.
	StoredAs schema.GroupResource
	// OtherVersions show the same objects; field management knows by version
	// what a write resets.
	OtherVersions []schema.GroupVersion
	// CustomStorage says that a package of its own makes the storage, because
	// it does more than store.
	CustomStorage bool
}

// Resource is a Kind without its type parameter: what the server does with each.
type Resource interface {
	// Info names the resource.
	Info() Info
	// Register adds defaulting, conversions and selectable fields to the scheme.
	Register(*runtime.Scheme) error
	// NewStorages builds the storages, keyed by URL part ("deployments",
	// "deployments/status").
	NewStorages(*runtime.Scheme, generic.RESTOptionsGetter) (map[string]rest.Storage, error)
	// CheckCreate, CheckUpdate and CheckStatusUpdate validate an object as the
	// storages do, metadata included.
	CheckCreate(obj runtime.Object) field.ErrorList
	CheckUpdate(obj, old runtime.Object) field.ErrorList
	CheckStatusUpdate(obj, old runtime.Object) field.ErrorList
	// Strategy is what writes to the object go through, and StatusStrategy what
	// writes to its status do (nil without one), for kinds without a storage of
	// their own.
	Strategy(typer runtime.ObjectTyper) rest.RESTCreateUpdateStrategy
	StatusStrategy(typer runtime.ObjectTyper) rest.RESTUpdateStrategy
}

// Info is what the rest of the server asks of a kind.
type Info struct {
	GroupVersion schema.GroupVersion
	Kind         string
	Resource     string
	// StoredAs is empty for a kind with a storage of its own.
	StoredAs      schema.GroupResource
	NoWatchCache  bool
	CustomStorage bool
	Table         table.Layout
	// Type is the stored Go type, a pointer.
	Type reflect.Type
}

// GroupResource is the resource's own name.
func (i Info) GroupResource() schema.GroupResource {
	return i.GroupVersion.WithResource(i.Resource).GroupResource()
}

// Info implements Resource.
func (k *Kind[T]) Info() Info {
	return Info{GroupVersion: k.GroupVersion, Kind: k.Kind, Resource: k.Resource, StoredAs: k.StoredAs, NoWatchCache: k.NoWatchCache,
		CustomStorage: k.CustomStorage, Table: k.Table, Type: reflect.TypeFor[T]()}
}

// GroupResource is the kind's own name in URLs.
func (k *Kind[T]) GroupResource() schema.GroupResource {
	return k.GroupVersion.WithResource(k.Resource).GroupResource()
}

func (k *Kind[T]) storedAs() schema.GroupResource {
	if !k.StoredAs.Empty() {
		return k.StoredAs
	}
	return k.GroupResource()
}

func (k *Kind[T]) singularName() string {
	if k.SingularName != "" {
		return k.SingularName
	}
	return strings.ToLower(k.Kind)
}

// Register implements Resource. A list is completed item by item.
func (k *Kind[T]) Register(s *runtime.Scheme) error {
	if k.AddToScheme != nil {
		if err := k.AddToScheme(s); err != nil {
			return fmt.Errorf("registering %s: %w", k.GroupResource(), err)
		}
	}
	if k.Default != nil {
		if err := registerDefault(s, k.GroupVersion.WithKind(k.Kind), func(obj runtime.Object) { k.Default(obj.(T)) }); err != nil {
			return err
		}
	}
	return k.SelectableFields.register(s, k.GroupVersion.WithKind(k.Kind))
}

// newFuncs makes constructors for the stored type and its list from the scheme.
func (k *Kind[T]) newFuncs(s *runtime.Scheme) (newObject, newList func() runtime.Object, err error) {
	hub := schema.GroupVersionKind{Group: k.GroupVersion.Group, Version: runtime.APIVersionInternal, Kind: k.Kind}
	maker := func(gvk schema.GroupVersionKind) (func() runtime.Object, error) {
		if _, err := s.New(gvk); err != nil {
			return nil, fmt.Errorf("making %s: %w", k.GroupResource(), err)
		}
		return func() runtime.Object {
			obj, err := s.New(gvk)
			if err != nil {
				panic(fmt.Sprintf("making %s: %v", k.GroupResource(), err)) // checked above
			}
			return obj
		}, nil
	}
	if newObject, err = maker(hub); err != nil {
		return nil, nil, err
	}
	hub.Kind += "List"
	newList, err = maker(hub)
	return newObject, newList, err
}
