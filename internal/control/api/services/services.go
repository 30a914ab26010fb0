// Package services serves the Service resource: cluster IPs and node ports that
// survive restarts and are never handed out twice, the proxy subresource, and
// the service of the API server itself.
package services

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/api/registry"
)

// Deps are the collaborators of the service storage.
type Deps struct {
	Scheme *runtime.Scheme
	// Addresses stores IPAddress objects, the record of cluster IPs.
	Addresses AddressStore
	// Ranges are the configured cluster IP ranges, primary family first; one or
	// two, of different families.
	Ranges []netip.Prefix
	// MoreRanges returns further ranges to take addresses from when those are
	// full (ServiceCIDR objects). Optional.
	MoreRanges func(ctx context.Context) ([]netip.Prefix, error)
	// NodePorts is the range of node ports; the zero value means DefaultNodePorts.
	NodePorts PortRange
	// Slices lists the EndpointSlices of a service, for services/proxy.
	Slices func(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	// DeleteEndpoints removes the Endpoints object of a deleted service.
	// Optional: the endpoints controller does it too, later.
	DeleteEndpoints func(ctx context.Context, namespace, name string) error
	// Proxy reaches endpoints; nil means a transport that does not verify their
	// certificates. ProxyLoopback is as in package pods.
	Proxy         http.RoundTripper
	ProxyLoopback bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
	// Metrics counts repairs; nil counts nothing.
	Metrics prometheus.Registerer
}

// REST is the storage of services. Besides the REST verbs it has Run, the repair loop.
type REST struct {
	*registry.Store
	deps  Deps
	alloc *allocator
	// repairs counts what passes changed, by action; a healthy server leaves it at zero.
	repairs *prometheus.CounterVec
	close   func()
}

// NewStorage builds the endpoints of services. The value under "services" is a
// *REST, whose Run must be started when the server serves.
func NewStorage(opts generic.RESTOptionsGetter, deps Deps) (map[string]rest.Storage, error) {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.NodePorts == (PortRange{}) {
		deps.NodePorts = DefaultNodePorts
	}
	if deps.Proxy == nil {
		deps.Proxy = nodelink.InsecureTransport()
	}
	kind := core.Service
	kind.PrepareForUpdate = prepareForUpdate
	store, err := kind.NewStore(deps.Scheme, opts)
	if err != nil {
		return nil, err
	}
	repairs, err := repairCounter(deps.Metrics)
	if err != nil {
		store.Destroy()
		return nil, err
	}
	ports, closePorts, err := newPortBook(opts, deps.Now)
	if err != nil {
		store.Destroy()
		return nil, err
	}
	r := &REST{
		Store:   store,
		deps:    deps,
		repairs: repairs,
		close:   closePorts,
	}
	r.alloc = &allocator{
		ips:    newPool[netip.Addr](addressBook{deps.Addresses}),
		ports:  newPool[uint16](ports),
		ranges: r.ranges,
		port:   deps.NodePorts,
	}
	status := kind.NewStatus(store)
	store.BeginCreate = r.beginCreate
	store.BeginUpdate = r.beginUpdate
	store.AfterDelete = r.afterDelete
	return map[string]rest.Storage{
		"services":        r,
		"services/status": status,
		"services/proxy":  &proxyREST{r},
	}, nil
}

// Destroy closes the storage and the record of node ports.
func (r *REST) Destroy() {
	r.Store.Destroy()
	if r.close != nil {
		r.close()
	}
}

// prepareForUpdate keeps the status; a service that is no load balancer any
// more loses what its balancer reported.
func prepareForUpdate(_ context.Context, s, _ *v1.Service) {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = v1.LoadBalancerStatus{}
	}
}

func (r *REST) available() []v1.IPFamily {
	out := make([]v1.IPFamily, len(r.deps.Ranges))
	for i, p := range r.deps.Ranges {
		out[i] = familyOf(p.Addr())
	}
	return out
}

func (r *REST) ranges(ctx context.Context, family v1.IPFamily) ([]netip.Prefix, error) {
	all := r.deps.Ranges
	if r.deps.MoreRanges != nil {
		more, err := r.deps.MoreRanges(ctx)
		if err != nil {
			return nil, err
		}
		all = append(append([]netip.Prefix{}, all...), more...)
	}
	var out []netip.Prefix
	seen := map[netip.Prefix]bool{}
	for _, p := range all {
		if p = p.Masked(); familyOf(p.Addr()) == family && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out, nil
}

// Create stores a new service with its allocations, or neither.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	inner, got := withClaims(ctx)
	out, err := r.Store.Create(inner, obj, validate, options)
	r.finish(ctx, got, nil, out, err, dryrun.IsDryRun(options.DryRun))
	return out, err
}

// Update stores a changed service with what the change allocates; what it frees
// is given back once the change is durable, never before, so that no crash and
// no lost race leaves two services with one address.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	inner, got := withClaims(ctx)
	out, created, err := r.Store.Update(inner, name, info, createValidation, updateValidation, forceAllowCreate, options)
	r.finish(ctx, got, got.before, out, err, dryrun.IsDryRun(options.DryRun))
	return out, created, err
}

// finish settles the claims of a request whose outcome is known. After an error
// that may hide a success (a timeout) nothing is released: keeping too much is
// repaired later, giving away too much is not.
func (r *REST) finish(ctx context.Context, got *claims, before *v1.Service, out runtime.Object, err error, dryRun bool) {
	if dryRun {
		return
	}
	now, _ := out.(*v1.Service)
	if err != nil {
		if !provesNotStored(err) {
			return
		}
		now, before = nil, nil
	}
	r.releaseUnused(ctx, got, before, now)
}

// releaseUnused gives back what a request no longer needs, even if the request was
// cancelled; what fails is left to the repair.
func (r *REST) releaseUnused(ctx context.Context, got *claims, before, now *v1.Service) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.alloc.releaseUnused(ctx, got, before, now); err != nil {
		r.deps.Log.Warn("leaving addresses or ports to the repair", "err", err)
	}
}

// provesNotStored reports whether err proves that the write was not stored. A timeout
// proves nothing.
func provesNotStored(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Reason {
	case metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonUnknown:
		return false
	}
	return true
}

func done(context.Context, bool) {}

// beginCreate completes a new service before it is validated and stored. The
// claims in the context, not the returned function, undo it: the library calls
// that before the outcome is known.
func (r *REST) beginCreate(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	s := obj.(*v1.Service)
	if s.Namespace == "" {
		s.Namespace = genericapirequest.NamespaceValue(ctx)
	}
	got, err := claimsFrom(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	alignClusterIPs(s, nil)
	return r.begin(ctx, s, nil, got, dryrun.IsDryRun(options.DryRun))
}

func (r *REST) beginUpdate(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc,
	error) {
	s, was := obj.(*v1.Service), old.(*v1.Service)
	got, err := claimsFrom(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	got.before = was.DeepCopy()
	inheritAllocated(s, was)
	alignClusterIPs(s, was)
	dropByType(s, was)
	return r.begin(ctx, s, was, got, dryrun.IsDryRun(options.DryRun))
}

func (r *REST) begin(ctx context.Context, s, old *v1.Service, got *claims, dryRun bool) (genericregistry.FinishFunc, error) {
	errs := resolveFamilies(s, old, r.available())
	if len(errs) == 0 {
		errs = r.alloc.allocate(ctx, s, old, got, dryRun)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
	}
	return done, nil
}

// afterDelete gives back what a service that is really gone had.
func (r *REST) afterDelete(obj runtime.Object, options *metav1.DeleteOptions) {
	if dryrun.IsDryRun(options.DryRun) {
		return
	}
	s := obj.(*v1.Service)
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), s.Namespace)
	r.releaseUnused(ctx, newClaims(), s, nil)
	if r.deps.DeleteEndpoints == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := r.deps.DeleteEndpoints(ctx, s.Namespace, s.Name); err != nil && !apierrors.IsNotFound(err) {
		r.deps.Log.Warn("leaving endpoints of a deleted service to the controller", "service", s.Namespace+"/"+s.Name, "err", err)
	}
}
