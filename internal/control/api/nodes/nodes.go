// Package nodes serves the Node resource and forwards requests to the agents of nodes.
package nodes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	slashpath "path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// Deps are the collaborators of the node storage.
type Deps struct {
	Scheme *runtime.Scheme
	// Nodes finds the agent of a node. It may read nodes through the storage
	// that NewStorage returns: it is only called when a request comes.
	Nodes nodelink.Finder
	// Proxy reaches ports of a node other than its agent's; nil means a
	// transport that verifies nothing.
	Proxy http.RoundTripper
	// Authorizer is asked for create on sessions that start with GET. Required.
	Authorizer authorizer.Authorizer
	// ProxyLoopback is as in package pods.
	ProxyLoopback bool
}

// NewStorage builds the endpoints of nodes.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	if deps.Proxy == nil {
		deps.Proxy = nodelink.InsecureTransport()
	}
	kind := core.Node
	// The status of a new node stays: an agent registers itself with its
	// addresses and capacity in one request.
	kind.PrepareForCreate = func(_ context.Context, node *v1.Node) { alignCIDRs(&node.Spec, nil) }
	kind.PrepareForUpdate = func(_ context.Context, node, old *v1.Node) { alignCIDRs(&node.Spec, &old.Spec) }
	store, err := kind.NewStore(deps.Scheme, opts)
	if err != nil {
		return nil, err
	}
	return map[string]rest.Storage{
		"nodes":        store,
		"nodes/status": kind.NewStatus(store),
		"nodes/proxy":  &proxyREST{store: store.Store, deps: deps},
	}, nil
}

// alignCIDRs keeps podCIDR the first of podCIDRs. A writer that knows only the
// singular field sets both; when an update contradicts itself, the field that
// changed wins.
func alignCIDRs(spec, old *v1.NodeSpec) {
	listSame := old != nil && slices.Equal(spec.PodCIDRs, old.PodCIDRs)
	switch {
	case len(spec.PodCIDRs) == 0 && spec.PodCIDR != "":
		spec.PodCIDRs = []string{spec.PodCIDR}
	case len(spec.PodCIDRs) > 0 && spec.PodCIDR != spec.PodCIDRs[0] && spec.PodCIDR != "" && listSame:
		spec.PodCIDRs = []string{spec.PodCIDR}
	case len(spec.PodCIDRs) > 0:
		spec.PodCIDR = spec.PodCIDRs[0]
	}
}

// Getter reads nodes from the storage built by NewStorage, for a nodelink.Finder.
func Getter(storages map[string]rest.Storage) func(ctx context.Context, name string) (*v1.Node, error) {
	store := storages["nodes"].(rest.Getter)
	return func(ctx context.Context, name string) (*v1.Node, error) {
		obj, err := store.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return obj.(*v1.Node), nil
	}
}

// proxyREST forwards HTTP to a node: any method on
// nodes/{[scheme:]name[:port]}/proxy/path. Without a port, or with the agent's,
// the request goes to the agent with the API server's identity.
type proxyREST struct {
	store *genericregistry.Store
	deps  Deps
}

func (r *proxyREST) New() runtime.Object      { return &v1.NodeProxyOptions{} }
func (r *proxyREST) Destroy()                 {}
func (r *proxyREST) ConnectMethods() []string { return nodelink.ProxyMethods }

func (r *proxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &v1.NodeProxyOptions{}, true, "path"
}

func (r *proxyREST) Connect(ctx context.Context, id string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*v1.NodeProxyOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("decoding the options of the subresource gave %T", options))
	}
	if opensSession(o.Path) {
		// The agent sees this server's rights and not the caller's.
		if err := nodelink.MayCreate(ctx, r.deps.Authorizer); err != nil {
			return nil, err
		}
	}
	location, transport, err := r.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	location.Path = utilnet.JoinPreservingTrailingSlash("", o.Path)
	return proxy.NewUpgradeAwareHandler(location, transport, true, false, proxy.NewErrorResponder(responder)), nil
}

// opensSession says whether a path of the agent runs something in a pod or
// connects to it.
func opensSession(path string) bool {
	first, _, _ := strings.Cut(strings.TrimLeft(slashpath.Clean("/"+path), "/"), "/")
	return slices.Contains([]string{"exec", "attach", "portForward", "run"}, first)
}

func (r *proxyREST) locate(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	link, err := r.deps.Nodes.Find(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == link.Port {
		return link.URL("/", nil), link.Transport, nil
	}
	// The link's host was checked, but an agent of this host may be on loopback
	// where nothing else may be reached.
	if err := nodelink.MayProxy(link.Host, r.deps.ProxyLoopback); err != nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("node %s: %v", name, err))
	}
	if scheme == "" {
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(link.Host, port)}, r.deps.Proxy, nil
}
