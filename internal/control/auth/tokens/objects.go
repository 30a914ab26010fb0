package tokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

type object = metav1.Object

// objects looks up what tokens are bound to. UID is the incarnation asked
// for, "" for any: it only says when a cached answer is too old to use, the
// object returned may still have another. A missing object is a NotFound
// error. Returned objects are shared and must not be modified.
type objects interface {
	ServiceAccount(ctx context.Context, namespace, name string, uid types.UID) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Secret, error)
	Node(ctx context.Context, name string, uid types.UID) (*corev1.Node, error)
}

// CachedObjects answers from informers and asks the API only where they do
// not have the wanted object: they may be a moment behind a fresh pod.
type CachedObjects struct {
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	secrets  corelisters.SecretLister
	nodes    corelisters.NodeLister
	client   kubernetes.Interface
	synced   []cache.InformerSynced
}

// NewCachedObjects registers the four informers on the factory. Client may be
// nil: then the informers have the last word.
func NewCachedObjects(factory informers.SharedInformerFactory, client kubernetes.Interface) *CachedObjects {
	core := factory.Core().V1()
	return &CachedObjects{
		accounts: core.ServiceAccounts().Lister(),
		pods:     core.Pods().Lister(),
		secrets:  core.Secrets().Lister(),
		nodes:    core.Nodes().Lister(),
		client:   client,
		synced: []cache.InformerSynced{
			core.ServiceAccounts().Informer().HasSynced, core.Pods().Informer().HasSynced,
			core.Secrets().Informer().HasSynced, core.Nodes().Informer().HasSynced,
		},
	}
}

// HasSynced says whether the informers hold their first lists.
func (c *CachedObjects) HasSynced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

func (c *CachedObjects) ServiceAccount(ctx context.Context, namespace, name string, uid types.UID) (*corev1.ServiceAccount, error) {
	o, err := c.accounts.ServiceAccounts(namespace).Get(name)
	if c.cachedWillDo(o, err, uid) {
		return o, err
	}
	return c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c *CachedObjects) Pod(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	o, err := c.pods.Pods(namespace).Get(name)
	if c.cachedWillDo(o, err, uid) {
		return o, err
	}
	return c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c *CachedObjects) Secret(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Secret, error) {
	o, err := c.secrets.Secrets(namespace).Get(name)
	if c.cachedWillDo(o, err, uid) {
		return o, err
	}
	return c.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c *CachedObjects) Node(ctx context.Context, name string, uid types.UID) (*corev1.Node, error) {
	o, err := c.nodes.Get(name)
	if c.cachedWillDo(o, err, uid) {
		return o, err
	}
	return c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func (c *CachedObjects) cachedWillDo(o object, err error, uid types.UID) bool {
	if c.client == nil {
		return true
	}
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return uid == "" || o.GetUID() == uid
}
