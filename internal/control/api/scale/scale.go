// Package scale serves the scale subresource: the replica count of a workload,
// seen through autoscaling/v1 Scale.
package scale

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// store is what the subresource needs of its parent's storage.
type store interface {
	rest.Getter
	rest.Updater
}

// view reads and writes the replicas of one kind of parent.
type view struct {
	spec     *int32
	set      func(int32)
	current  int32
	selector string
}

func viewOf(obj runtime.Object) (*view, error) {
	one := int32(1)
	count := func(p *int32) *int32 {
		if p == nil {
			return &one
		}
		return p
	}
	var v *view
	var selector *metav1.LabelSelector
	switch o := obj.(type) {
	case *appsv1.Deployment:
		v, selector = &view{spec: count(o.Spec.Replicas), current: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = &n }},
			o.Spec.Selector
	case *appsv1.ReplicaSet:
		v, selector = &view{spec: count(o.Spec.Replicas), current: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = &n }},
			o.Spec.Selector
	case *appsv1.StatefulSet:
		v, selector = &view{spec: count(o.Spec.Replicas), current: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = &n }},
			o.Spec.Selector
	case *v1.ReplicationController:
		v = &view{spec: count(o.Spec.Replicas), current: o.Status.Replicas, set: func(n int32) { o.Spec.Replicas = &n }}
		v.selector = labels.Set(o.Spec.Selector).String()
		return v, nil
	default:
		return nil, fmt.Errorf("reading the scale of a %T: it has none", obj)
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector: %w", err)
	}
	v.selector = parsed.String()
	return v, nil
}

// forKind returns the scale subresource of the objects in store. gv is the
// parent's version, resource its plural name.
func forKind(store store, gv schema.GroupVersion, resource string) rest.Storage {
	return &scaleREST{store: store, parent: gv.WithResource(resource)}
}

// AddTo adds "<resource>/scale" beside every workload in the storages of a
// server that has one.
func AddTo(storages map[schema.GroupVersion]map[string]rest.Storage) {
	for gv, resources := range map[schema.GroupVersion][]string{
		appsv1.SchemeGroupVersion: {"deployments", "replicasets", "statefulsets"},
		v1.SchemeGroupVersion:     {"replicationcontrollers"},
	} {
		for _, name := range resources {
			if store, ok := storages[gv][name].(store); ok {
				storages[gv][name+"/scale"] = forKind(store, gv, name)
			}
		}
	}
}

type scaleREST struct {
	store  store
	parent schema.GroupVersionResource
}

func (r *scaleREST) New() runtime.Object   { return &autoscalingv1.Scale{} }
func (r *scaleREST) Destroy()              {}
func (r *scaleREST) NamespaceScoped() bool { return true }

func (r *scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

func (r *scaleREST) ConvertToTable(ctx context.Context, object runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(r.parent.GroupResource()).ConvertToTable(ctx, object, options)
}

func (r *scaleREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	s, err := r.scaleOf(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s, nil
}

// Update writes the replicas of the scale into its parent, under the parent's
// resourceVersion if the scale has one.
func (r *scaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, _, err := r.store.Update(ctx, name, &parentInfo{rest: r, name: name, info: info},
		r.checkCreate(createValidation), r.checkUpdate(updateValidation), false, options)
	if err != nil {
		return nil, false, err
	}
	s, err := r.scaleOf(obj)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	return s, false, nil
}

// checkCreate and checkUpdate show admission the scale, which is what the
// request is about.
func (r *scaleREST) checkCreate(f rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, obj runtime.Object) error {
		s, err := r.scaleOf(obj)
		if err != nil {
			return err
		}
		return f(ctx, s)
	}
}

func (r *scaleREST) checkUpdate(f rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, obj, old runtime.Object) error {
		s, err := r.scaleOf(obj)
		if err != nil {
			return err
		}
		was, err := r.scaleOf(old)
		if err != nil {
			return err
		}
		return f(ctx, s, was)
	}
}

func (r *scaleREST) scaleOf(obj runtime.Object) (*autoscalingv1.Scale, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	v, err := viewOf(obj)
	if err != nil {
		return nil, fmt.Errorf("scale of %s %s/%s: %w", r.parent.Resource, m.GetNamespace(), m.GetName(), err)
	}
	fields, err := r.handler(m).ToSubresource()
	if err != nil {
		return nil, err
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp(),
			ManagedFields: fields,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: *v.spec},
		Status: autoscalingv1.ScaleStatus{Replicas: v.current, Selector: v.selector},
	}, nil
}

// handler translates field ownership between parent and scale.
func (r *scaleREST) handler(m metav1.Object) *managedfields.ScaleHandler {
	gv := r.parent.GroupVersion()
	return managedfields.NewScaleHandler(m.GetManagedFields(), gv, managedfields.ResourcePathMappings{
		gv.String(): fieldpath.MakePathOrDie("spec", "replicas"),
	})
}

// parentInfo is an update of the parent that is described by an update of its scale.
type parentInfo struct {
	rest *scaleREST
	name string
	info rest.UpdatedObjectInfo
}

func (p *parentInfo) Preconditions() *metav1.Preconditions { return p.info.Preconditions() }

func (p *parentInfo) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	parent := old.DeepCopyObject()
	m, err := meta.Accessor(parent)
	if err != nil {
		return nil, err
	}
	if m.GetResourceVersion() == "" {
		return nil, apierrors.NewNotFound(p.rest.parent.GroupResource(), p.name)
	}
	was, err := p.rest.scaleOf(old)
	if err != nil {
		return nil, err
	}
	obj, err := p.info.UpdatedObject(ctx, was)
	if err != nil {
		return nil, err
	}
	s, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", obj))
	}
	if errs := check(s, p.name); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), s.Name, errs)
	}
	if s.ResourceVersion != "" {
		m.SetResourceVersion(s.ResourceVersion)
	}
	v, err := viewOf(parent)
	if err != nil {
		return nil, err
	}
	v.set(s.Spec.Replicas)
	entries, err := p.rest.handler(m).ToParent(s.ManagedFields)
	if err != nil {
		return nil, err
	}
	m.SetManagedFields(entries)
	return parent, nil
}

func check(s *autoscalingv1.Scale, name string) field.ErrorList {
	var errs field.ErrorList
	if s.Name != name {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, fmt.Sprintf("must be %q, the name in the URL", name)))
	}
	if s.Spec.Replicas < 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), s.Spec.Replicas, "must be greater than or equal to 0"))
	}
	return errs
}
