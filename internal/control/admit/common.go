package admit

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

var (
	podsResource        = schema.GroupResource{Resource: "pods"}
	bindingsResource    = schema.GroupResource{Resource: "bindings"}
	nodesResource       = schema.GroupResource{Resource: "nodes"}
	claimsResource      = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumesResource     = schema.GroupResource{Resource: "persistentvolumes"}
	attributesResource  = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}
	ingressesResource   = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}
	prioritiesResource  = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	certificateResource = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	podCertificates     = schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
	bundleResource      = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
)

// isFor says whether the request is about the resource itself and not about
// one of its subresources.
func isFor(a admission.Attributes, resource schema.GroupResource) bool {
	return a.GetSubresource() == "" && a.GetResource().GroupResource() == resource
}

// podOf returns the pod a request writes, nil when it writes something else.
func podOf(a admission.Attributes) *corev1.Pod {
	if !isFor(a, podsResource) {
		return nil
	}
	pod, _ := a.GetObject().(*corev1.Pod)
	return pod
}

// allSynced joins informers into one readiness function for Handler.
func allSynced(informers ...cache.SharedIndexInformer) func() bool {
	return func() bool {
		for _, informer := range informers {
			if !informer.HasSynced() {
				return false
			}
		}
		return true
	}
}

// cachedOrLive returns what the cache has, or asks the API when the cache does
// not have it: the object may be a moment old.
func cachedOrLive[T any](ctx context.Context, client kubernetes.Interface, cached func() (T, error), live func(ctx context.Context) (T,
	error)) (T, error) {
	object, err := cached()
	if !apierrors.IsNotFound(err) || client == nil {
		return object, err
	}
	return live(ctx)
}
