package services

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	serverproxy "k8s.io/apiserver/pkg/util/proxy"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// proxyREST forwards HTTP to a random ready endpoint of a service:
// services/{[scheme:]name[:port]}/proxy/path, with the port given by name or
// number.
type proxyREST struct{ services *REST }

func (r *proxyREST) New() runtime.Object      { return &v1.ServiceProxyOptions{} }
func (r *proxyREST) Destroy()                 {}
func (r *proxyREST) ConnectMethods() []string { return nodelink.ProxyMethods }

func (r *proxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &v1.ServiceProxyOptions{}, true, "path"
}

func (r *proxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*v1.ServiceProxyOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("decoding the options of the subresource gave %T", options))
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	obj, err := r.services.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	portName, err := portNamed(obj.(*v1.Service), port)
	if err != nil {
		return nil, err
	}
	host, err := r.endpoint(ctx, obj.(*v1.Service), portName)
	if err != nil {
		return nil, err
	}
	if scheme == "" {
		scheme = "http"
	}
	location := &url.URL{Scheme: scheme, Host: host, Path: utilnet.JoinPreservingTrailingSlash("", o.Path)}
	return proxy.NewUpgradeAwareHandler(location, r.services.deps.Proxy, true, false, proxy.NewErrorResponder(responder)), nil
}

// endpoint picks an endpoint that serves the port and whose address may be proxied to.
func (r *proxyREST) endpoint(ctx context.Context, s *v1.Service, portName string) (string, error) {
	if r.services.deps.Slices == nil {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", s.Name))
	}
	slices, err := r.services.deps.Slices(ctx, genericapirequest.NamespaceValue(ctx), s.Name)
	if err != nil {
		return "", fmt.Errorf("listing endpoints of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	family := v1.IPv4Protocol
	if len(s.Spec.IPFamilies) > 0 {
		family = s.Spec.IPFamilies[0]
	}
	return serverproxy.RandomEndpoint(s.Name, slices, portName, family, func(e *discoveryv1.Endpoint) bool {
		return len(e.Addresses) > 0 && nodelink.MayProxy(e.Addresses[0], r.services.deps.ProxyLoopback) == nil
	})
}

// portNamed resolves the port of the request to the name of a service port.
// Without one, the only port is meant, or the unnamed one.
func portNamed(s *v1.Service, port string) (string, error) {
	if port == "" {
		if len(s.Spec.Ports) == 1 {
			return s.Spec.Ports[0].Name, nil
		}
		return "", nil
	}
	number, err := strconv.ParseInt(port, 10, 32)
	for _, p := range s.Spec.Ports {
		if p.Name == port || err == nil && int64(p.Port) == number {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, s.Name))
}
