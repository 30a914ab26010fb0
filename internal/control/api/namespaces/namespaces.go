// Package namespaces serves the Namespace resource, which dies in two steps:
// DELETE makes it Terminating, and it is gone when anyone who empties it
// removes the last entry of spec.finalizers.
package namespaces

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Deps are the collaborators of the namespace storage.
type Deps struct {
	Scheme *runtime.Scheme
}

var namespaceResource = v1.Resource("namespaces")

// Immortal namespaces hold the cluster together; no one may delete them.
var Immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// NewStorage builds the endpoints of namespaces.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	kind := core.Namespace
	kind.PrepareForCreate = func(_ context.Context, ns *v1.Namespace) { prepareNew(ns) }
	kind.PrepareForUpdate = func(_ context.Context, ns, old *v1.Namespace) {
		ns.Spec.Finalizers = old.Spec.Finalizers
		label(ns)
	}
	kind.PrepareForStatusUpdate = func(_ context.Context, ns, _ *v1.Namespace) { label(ns) }
	store, err := kind.NewStore(deps.Scheme, opts)
	if err != nil {
		return nil, err
	}
	store.ShouldDeleteDuringUpdate = emptied
	finalize := kind.NewSubresource(store, registry.Endpoint[*v1.Namespace]{
		PrepareForUpdate: func(_ context.Context, ns, old *v1.Namespace) {
			ns.Status = old.Status
			label(ns)
		},
		ValidateUpdate: validate.NamespaceFinalize,
		ResetFields:    [][]string{{"status"}},
	})
	return map[string]rest.Storage{
		"namespaces":          &namespaceREST{verbs: store, store: store.Store},
		"namespaces/status":   kind.NewStatus(store),
		"namespaces/finalize": &finalizeREST{finalize},
	}, nil
}

// prepareNew gives a namespace the finalizer that its content is emptied under,
// and its phase.
func prepareNew(ns *v1.Namespace) {
	ns.Status = v1.NamespaceStatus{Phase: v1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, v1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, v1.FinalizerKubernetes)
	}
	label(ns)
}

// label asserts the label by which selectors name namespaces; no one can remove
// or forge it.
func label(ns *v1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[v1.LabelMetadataName] = ns.Name
}

// emptied says that an update removed the last finalizer of the spec. The store
// has checked those of the metadata.
func emptied(_ context.Context, _ string, obj, _ runtime.Object) bool {
	return len(obj.(*v1.Namespace).Spec.Finalizers) == 0
}

// verbs is what namespaces offer of the store: everything but deletecollection.
type verbs interface {
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
	rest.StorageVersionProvider
	rest.ResetFieldsStrategy
	rest.StorageWithReadiness
}

// namespaceREST is the storage of namespaces.
type namespaceREST struct {
	verbs
	store *genericregistry.Store
}

func (r *namespaceREST) ShortNames() []string             { return core.Namespace.ShortNames }
func (r *namespaceREST) DeleteReturnsDeletedObject() bool { return true }

// Delete starts or continues the end of a namespace. The first request marks
// it; later ones answer with its state until spec.finalizers is empty.
func (r *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if slices.Contains(Immortal, name) {
		return nil, false, apierrors.NewForbidden(namespaceResource, name, fmt.Errorf("this namespace may not be deleted "+
			"(NamespaceLifecycle: %v hold what the cluster itself needs; delete the objects in it instead)", Immortal))
	}
	obj, err := r.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*v1.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = &ns.UID
	}
	if err := matches(ns, options.Preconditions); err != nil {
		return nil, false, err
	}
	if ns.DeletionTimestamp == nil {
		out, err := r.mark(ctx, name, validate, options)
		return out, false, err
	}
	if len(ns.Spec.Finalizers) > 0 {
		return ns, false, nil
	}
	return r.store.Delete(ctx, name, validate, options)
}

func matches(ns *v1.Namespace, p *metav1.Preconditions) error {
	switch {
	case *p.UID != ns.UID:
		return apierrors.NewConflict(namespaceResource, ns.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, ns.UID))
	case p.ResourceVersion != nil && *p.ResourceVersion != ns.ResourceVersion:
		return apierrors.NewConflict(namespaceResource, ns.Name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion,
				ns.ResourceVersion))
	}
	return nil
}

// mark makes the namespace Terminating.
func (r *namespaceREST) mark(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	pre := &storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	out := &v1.Namespace{}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, out, false, pre, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		ns := in.(*v1.Namespace)
		if validate != nil {
			if err := validate(ctx, ns); err != nil {
				return nil, err
			}
		}
		if ns.DeletionTimestamp == nil {
			now := metav1.Now()
			ns.DeletionTimestamp = &now
		}
		ns.Status.Phase = v1.NamespaceTerminating
		ns.Finalizers = withPolicy(ns.Finalizers, options)
		return ns, nil
	}), dryrun.IsDryRun(options.DryRun), nil)
	if err != nil {
		return nil, storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, namespaceResource, name), namespaceResource, name)
	}
	return out, nil
}

// withPolicy writes an explicitly requested propagation policy as the finalizer
// that the garbage collector serves.
func withPolicy(finalizers []string, options *metav1.DeleteOptions) []string {
	var want string
	switch p := options.PropagationPolicy; {
	case options.OrphanDependents != nil && *options.OrphanDependents: //nolint:staticcheck // old clients send it
		want = metav1.FinalizerOrphanDependents
	case options.OrphanDependents != nil: //nolint:staticcheck // old clients send it
	case p == nil:
		return finalizers
	case *p == metav1.DeletePropagationOrphan:
		want = metav1.FinalizerOrphanDependents
	case *p == metav1.DeletePropagationForeground:
		want = metav1.FinalizerDeleteDependents
	}
	out := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if want != "" {
		out = append(out, want)
	}
	return out
}

// finalizeREST offers PUT only: what it replaces is the namespace's life.
type finalizeREST struct{ sub *registry.Subresource }

func (r *finalizeREST) New() runtime.Object { return r.sub.New() }
func (r *finalizeREST) Destroy()            {}

func (r *finalizeREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.sub.Update(ctx, name, info, createValidation, updateValidation, forceAllowCreate, options)
}

func (r *finalizeREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.sub.GetResetFields()
}
