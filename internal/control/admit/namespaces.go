package admit

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Names of the admission of requests in a namespace that is not there.
const (
	// NamespaceExists refuses them. NamespaceLifecycle does so, too, for creates.
	NamespaceExists = "NamespaceExists"
	// NamespaceAutoProvision makes the namespace.
	NamespaceAutoProvision = "NamespaceAutoProvision"
)

// namespaces looks up the namespace of a request, in the cache and then live.
type namespaces struct {
	*admission.Handler
	name   string
	client kubernetes.Interface
	lister corelisters.NamespaceLister
}

func (n *namespaces) SetExternalKubeClientSet(client kubernetes.Interface) { n.client = client }

func (n *namespaces) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	n.lister = f.Core().V1().Namespaces().Lister()
	n.SetReadyFunc(allSynced(f.Core().V1().Namespaces().Informer()))
}

func (n *namespaces) ValidateInitialization() error {
	if n.client == nil || n.lister == nil {
		return errors.New(n.name + " needs a client and an informer factory")
	}
	return nil
}

func (n *namespaces) get(ctx context.Context, a admission.Attributes) (*corev1.Namespace, error) {
	if !n.WaitForReady() {
		return nil, admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	return cachedOrLive(ctx, n.client,
		func() (*corev1.Namespace, error) { return n.lister.Get(a.GetNamespace()) },
		func(ctx context.Context) (*corev1.Namespace, error) {
			return n.client.CoreV1().Namespaces().Get(ctx, a.GetNamespace(), metav1.GetOptions{})
		})
}

// aboutNamespace says whether the request is about a namespace itself, or not
// in one.
func aboutNamespace(a admission.Attributes) bool {
	return a.GetNamespace() == "" || a.GetKind().Kind == "Namespace" && a.GetKind().Group == ""
}

type namespaceExists struct{ namespaces }

func newNamespaceExists(io.Reader) (admission.Interface, error) {
	return &namespaceExists{namespaces{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete),
		name: NamespaceExists}}, nil
}

func (n *namespaceExists) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if aboutNamespace(a) {
		return nil
	}
	_, err := n.get(ctx, a)
	return err
}

type namespaceAutoProvision struct{ namespaces }

func newNamespaceAutoProvision(io.Reader) (admission.Interface, error) {
	return &namespaceAutoProvision{namespaces{Handler: admission.NewHandler(admission.Create), name: NamespaceAutoProvision}}, nil
}

func (n *namespaceAutoProvision) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	// A trial run leaves nothing behind; what it needs must be there.
	if aboutNamespace(a) || a.IsDryRun() {
		return nil
	}
	if _, err := n.get(ctx, a); !apierrors.IsNotFound(err) {
		return err
	}
	_, err := n.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.GetNamespace()}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
