package admit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// Names of the admission that fills in classes.
const (
	// DefaultStorageClass gives claims without a class the default one.
	DefaultStorageClass = "DefaultStorageClass"
	// IngressClass does the same for ingresses.
	DefaultIngressClass = "DefaultIngressClass"
)

func newDefaultStorageClass(io.Reader) (admission.Interface, error) {
	return &defaultClass[*storagev1.StorageClass]{
		Handler: admission.NewHandler(admission.Create), name: DefaultStorageClass,
		marks: []string{"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"},
		field: func(a admission.Attributes) **string {
			claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
			if !ok || !isFor(a, claimsResource) || volume.PersistentVolumeClaimHasClass(claim) {
				return nil
			}
			return &claim.Spec.StorageClassName
		},
		watch: func(f informers.SharedInformerFactory) (lister[*storagev1.StorageClass], cache.SharedIndexInformer) {
			classes := f.Storage().V1().StorageClasses()
			return classes.Lister(), classes.Informer()
		},
	}, nil
}

func newDefaultIngressClass(io.Reader) (admission.Interface, error) {
	return &defaultClass[*networkingv1.IngressClass]{
		Handler: admission.NewHandler(admission.Create), name: DefaultIngressClass,
		marks: []string{networkingv1.AnnotationIsDefaultIngressClass},
		field: func(a admission.Attributes) **string {
			ingress, ok := a.GetObject().(*networkingv1.Ingress)
			if !ok || !isFor(a, ingressesResource) || ingress.Spec.IngressClassName != nil {
				return nil
			}
			if _, old := ingress.Annotations["kubernetes.io/ingress.class"]; old {
				return nil
			}
			return &ingress.Spec.IngressClassName
		},
		watch: func(f informers.SharedInformerFactory) (lister[*networkingv1.IngressClass], cache.SharedIndexInformer) {
			classes := f.Networking().V1().IngressClasses()
			return classes.Lister(), classes.Informer()
		},
	}, nil
}

type lister[T any] interface {
	List(labels.Selector) ([]T, error)
}

// defaultClass names the class that is marked as the default in new objects
// that name none.
type defaultClass[T metav1.Object] struct {
	*admission.Handler
	name string
	// marks are annotations of which one with "true" makes a class the default.
	marks []string
	// field is what to fill in; nil for an object that needs nothing.
	field   func(admission.Attributes) **string
	watch   func(informers.SharedInformerFactory) (lister[T], cache.SharedIndexInformer)
	classes lister[T]
}

func (d *defaultClass[T]) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes, informer := d.watch(f)
	d.classes = classes
	d.SetReadyFunc(allSynced(informer))
}

func (d *defaultClass[T]) ValidateInitialization() error {
	if d.classes == nil {
		return errors.New(d.name + " needs an informer factory")
	}
	return nil
}

func (d *defaultClass[T]) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	field := d.field(a)
	if field == nil {
		return nil
	}
	if !d.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	marked := slices.DeleteFunc(slices.Clone(all), func(class T) bool {
		return !slices.ContainsFunc(d.marks, func(mark string) bool { return class.GetAnnotations()[mark] == "true" })
	})
	if class, found := newest(marked); found {
		name := class.GetName()
		*field = &name
	}
	return nil
}

// newest returns the default to use when several are marked: the one made
// last, and of those made at once the first by name.
func newest[T metav1.Object](marked []T) (T, bool) {
	var none T
	if len(marked) == 0 {
		return none, false
	}
	return slices.MinFunc(marked, func(a, b T) int {
		return cmp.Or(b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	}), true
}
