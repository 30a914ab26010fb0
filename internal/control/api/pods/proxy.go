package pods

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// proxyREST forwards HTTP to a pod: any method on pods/{[scheme:]name[:port]}/proxy/path.
type proxyREST struct{ *looker }

func newProxy(l *looker) rest.Storage { return &proxyREST{l} }

func (r *proxyREST) New() runtime.Object      { return &v1.PodProxyOptions{} }
func (r *proxyREST) Destroy()                 {}
func (r *proxyREST) ConnectMethods() []string { return nodelink.ProxyMethods }

// NewConnectOptions takes the rest of the URL as the path to ask the pod for.
func (r *proxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &v1.PodProxyOptions{}, true, "path"
}

func (r *proxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*v1.PodProxyOptions)
	if !ok {
		return nil, wrongOptions(options)
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := getPod(ctx, r.store, name)
	if err != nil {
		return nil, err
	}
	if port == "" {
		port = firstPort(pod)
	}
	ip := pod.Status.PodIP
	if err := nodelink.MayProxy(ip, r.deps.ProxyLoopback); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s: %v", name, err))
	}
	location := &url.URL{Scheme: scheme, Host: ip}
	if location.Scheme == "" {
		location.Scheme = "http"
	}
	if port != "" {
		location.Host = net.JoinHostPort(ip, port)
	} else if net.ParseIP(ip).To4() == nil {
		location.Host = "[" + ip + "]"
	}
	// No path stays empty: the handler then leads browsers to the address with a slash.
	location.Path = utilnet.JoinPreservingTrailingSlash("", o.Path)
	return proxy.NewUpgradeAwareHandler(location, r.deps.Proxy, true, false, proxy.NewErrorResponder(responder)), nil
}

// firstPort is the port meant by a request that names none: the first that the
// pod declares.
func firstPort(pod *v1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if len(c.Ports) > 0 {
			return strconv.Itoa(int(c.Ports[0].ContainerPort))
		}
	}
	return ""
}
