// Package api is the API server: one declarative row per resource, turned into
// storages and served by the generic API server library over etcd.
package api

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Row describes one resource: everything the server must know to store it,
// check it and show it. What a row leaves empty has the common meaning stated
// at the field.
type Row struct {
	// GV and Kind name the type in the scheme; its list type is Kind + "List".
	GV   schema.GroupVersion
	Kind string
	// Resource is the plural name in URLs, Singular the other one.
	Resource, Singular string
	ShortNames         []string
	// Categories groups resources for kubectl; "all" is the well-known one.
	Categories []string
	// ClusterScoped resources have no namespace.
	ClusterScoped bool

	// HasStatus gives the resource a status subresource: writes to the object
	// keep the stored status, writes to /status keep everything else but
	// metadata.
	HasStatus bool
	// KeepStatusOnCreate stores the status a new object carries instead of
	// clearing it. Only meaningful with HasStatus.
	KeepStatusOnCreate bool
	// StatusKeeps are top-level metadata parts a status write may not change.
	StatusKeeps metadataPart

	// Generation says which changes bump metadata.generation. None leaves the
	// field at zero.
	Generation generationRule

	// PrepareCreate, PrepareUpdate and PrepareStatus run after the rules above
	// and before validation. They change only the new object.
	PrepareCreate func(ctx context.Context, obj runtime.Object)
	PrepareUpdate func(ctx context.Context, obj, old runtime.Object)
	PrepareStatus func(ctx context.Context, obj, old runtime.Object)
	// Validate adds checks to those of package validate, on create and update.
	Validate func(obj runtime.Object) field.ErrorList
	// ValidateStatus adds checks to writes of /status.
	ValidateStatus func(obj, old runtime.Object) field.ErrorList
	// Warnings are shown to whoever writes the object; old is nil on create.
	Warnings func(obj, old runtime.Object) []string

	// CreateByPut lets a PUT to a missing name create the object.
	CreateByPut bool
	// NeedsResourceVersion refuses updates that name no resource version.
	NeedsResourceVersion bool
	// ReturnDeleted answers a DELETE with the object instead of a Status.
	ReturnDeleted bool
	// GarbageCollection is what happens to dependents when a DELETE does not
	// say. Empty means they are deleted in the background.
	GarbageCollection rest.GarbageCollectionPolicy
	// TTL removes objects this long after their last write; 0 keeps them.
	TTL time.Duration
	// NoCache serves lists and watches straight from etcd: for resources that
	// are written often and read rarely, and for those that at most one or two
	// controllers ever watch. A cache costs memory, goroutines and a wake-up a
	// second even when nobody asks.
	NoCache bool
	// StoredAs names the row whose storage this one shares; both rows show the
	// same objects under different group versions.
	StoredAs schema.GroupResource
	// OtherVersions show the same objects too; field management knows what a
	// write resets by version.
	OtherVersions []schema.GroupVersion
}

// generationRule says which changes bump metadata.generation.
type generationRule int

const (
	// generationNone never touches the field.
	generationNone generationRule = iota
	// generationSpec bumps on a change of the field Spec.
	generationSpec
	// generationSpecAndAnnotations bumps on Spec or annotations (Deployment,
	// whose controller copies annotations to ReplicaSets).
	generationSpecAndAnnotations
	// generationContent bumps on a change of anything but metadata and status,
	// for types without a Spec.
	generationContent
	// generationAll bumps on a change of anything but the server's own metadata.
	generationAll
	// generationOnce sets 1 when the object is made and never bumps.
	generationOnce
)

// metadataPart is a set of metadata fields.
type metadataPart int

const (
	keepLabels metadataPart = 1 << iota
	keepOwners
	// keepMeta is everything that writers of metadata can change.
	keepMeta
)

func (r *Row) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.GV.Group, Resource: r.Resource}
}

// storageGroupResource is where the objects of the row lie.
func (r *Row) storageGroupResource() schema.GroupResource {
	if !r.StoredAs.Empty() {
		return r.StoredAs
	}
	return r.groupResource()
}

// newFuncs makes constructors for the row's type and list type from the
// scheme, so that rows name kinds and not Go types.
func (r *Row) newFuncs(s *runtime.Scheme) (newObject, newList func() runtime.Object, err error) {
	hub := schema.GroupVersionKind{Group: r.GV.Group, Version: runtime.APIVersionInternal, Kind: r.Kind}
	make := func(gvk schema.GroupVersionKind) (func() runtime.Object, error) {
		if _, err := s.New(gvk); err != nil {
			return nil, fmt.Errorf("row %s: %w", r.groupResource(), err)
		}
		return func() runtime.Object {
			obj, err := s.New(gvk)
			if err != nil {
				panic(fmt.Sprintf("row %s: %v", r.groupResource(), err)) // checked above
			}
			return obj
		}, nil
	}
	if newObject, err = make(hub); err != nil {
		return nil, nil, err
	}
	hub.Kind += "List"
	newList, err = make(hub)
	return newObject, newList, err
}
