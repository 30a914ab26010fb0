package aggregation

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// resolver finds where a foreign server answers: at one of the endpoints of its
// service and not at the cluster IP, since our host need not have a proxy.
type resolver struct {
	services  corelisters.ServiceLister
	endpoints proxy.EndpointSliceGetter
}

// ResolveEndpoint implements the library's ServiceResolver.
func (r resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return proxy.ResolveCluster(r.services, namespace, name, port)
	}
	return proxy.ResolveEndpoint(r.services, r.endpoints, namespace, name, port)
}
