package api

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/internal/control/api/addresses"
	"github.com/berth-dev/berth/internal/control/api/certificates"
	"github.com/berth-dev/berth/internal/control/api/claims"
	"github.com/berth-dev/berth/internal/control/api/disruption"
	"github.com/berth-dev/berth/internal/control/api/namespaces"
	"github.com/berth-dev/berth/internal/control/api/nodes"
	"github.com/berth-dev/berth/internal/control/api/pods"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scale"
	"github.com/berth-dev/berth/internal/control/api/services"
)

// addCustomStorages adds the resources whose storages are written by hand, because they
// do more than store, to those of the rows. A special may replace a row's
// storage or add subresources to it.
func (s *Server) addCustomStorages(scheme *runtime.Scheme, made storages) error {
	// Node agents are found through the node storage, which is only made below;
	// no one asks before a request comes.
	var readNode func(context.Context, string) (*corev1.Node, error)
	links, err := s.nodeLinks(func(ctx context.Context, name string) (*corev1.Node, error) { return readNode(ctx, name) })
	if err != nil {
		return err
	}
	core, opts := corev1.SchemeGroupVersion, s.backend
	for _, special := range []struct {
		name string
		make func() (map[string]rest.Storage, error)
	}{
		{"nodes", func() (map[string]rest.Storage, error) {
			return nodes.NewStorage(opts, nodes.Deps{Scheme: scheme, Nodes: links, Authorizer: s.auth.Authorizer,
				ProxyLoopback: s.cfg.ProxyToLoopback})
		}},
		{"namespaces", func() (map[string]rest.Storage, error) {
			return namespaces.NewStorage(opts, namespaces.Deps{Scheme: scheme})
		}},
		{"pods", func() (map[string]rest.Storage, error) {
			return pods.NewStorage(opts, pods.Deps{
				Scheme: scheme, Disruptions: disruption.Client{API: s.client.PolicyV1()}, Nodes: links, Log: s.cfg.Log,
				ProxyLoopback: s.cfg.ProxyToLoopback, Authorizer: s.auth.Authorizer,
			})
		}},
		{"services", func() (map[string]rest.Storage, error) { return s.serviceStorages(scheme, made) }},
	} {
		storages, err := special.make()
		if err != nil {
			return fmt.Errorf("making storages of %s: %w", special.name, err)
		}
		add(made, core, storages)
	}
	readNode = nodes.Getter(made[core])

	requests, err := certificates.NewStorage(opts, certificates.Deps{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making storages of certificate signing requests: %w", err)
	}
	add(made, certificatesv1.SchemeGroupVersion, requests)
	devices := made[resourcev1.SchemeGroupVersion]
	devices["resourceclaims/status"] = claims.NewStatus(devices["resourceclaims/status"].(*registry.Subresource), s.auth.Authorizer)
	scale.AddTo(made)
	for gv, storages := range s.auth.Storage() {
		add(made, gv, storages)
	}
	return nil
}

// serviceStorages wires services to what they allocate from and what they lead
// to, all through the storages beside them.
func (s *Server) serviceStorages(scheme *runtime.Scheme, made storages) (map[string]rest.Storage, error) {
	ranges, err := parseRanges(s.cfg.ServiceCIDRs)
	if err != nil {
		return nil, err
	}
	ports, err := parsePorts(s.cfg.NodePortRange)
	if err != nil {
		return nil, err
	}
	network := made[networkingv1.SchemeGroupVersion]
	slices := made[discoveryv1.SchemeGroupVersion]["endpointslices"].(rest.Lister)
	endpoints := made[corev1.SchemeGroupVersion]["endpoints"].(rest.GracefulDeleter)
	storages, err := services.NewStorage(s.backend, services.Deps{
		Scheme: scheme, Ranges: ranges, NodePorts: ports, Log: s.cfg.Log, ProxyLoopback: s.cfg.ProxyToLoopback,
		Metrics:   legacyregistry.Registerer(),
		Addresses: network["ipaddresses"].(services.AddressStore), MoreRanges: addresses.Ranges(network),
		Slices: func(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
			return slicesOf(ctx, slices, namespace, service)
		},
		DeleteEndpoints: func(ctx context.Context, namespace, name string) error {
			_, _, err := endpoints.Delete(within(ctx, namespace), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	allocations := storages["services"].(*services.REST)
	s.background = append(s.background, task{"repairing service allocations", func(ctx context.Context) error {
		allocations.Run(ctx)
		return nil
	}})
	s.control(addresses.Controller())
	return storages, nil
}

// within is ctx for a request to a storage in a namespace; "" means all of
// them, or none for cluster-scoped resources.
func within(ctx context.Context, namespace string) context.Context {
	return genericapirequest.WithNamespace(ctx, namespace)
}

// slicesOf reads the watch cache: a proxy request can bear the milliseconds it
// may lag behind.
func slicesOf(ctx context.Context, lister rest.Lister, namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	list, err := lister.List(within(ctx, namespace), &metainternal.ListOptions{ResourceVersion: "0", LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing endpoint slices of service %s/%s: %w", namespace, service, err)
	}
	items := list.(*discoveryv1.EndpointSliceList).Items
	out := make([]*discoveryv1.EndpointSlice, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out, nil
}

func parseRanges(cidrs []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, cidr := range cidrs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("parsing service range: %w", err)
		}
		out = append(out, prefix.Masked())
	}
	if len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("parsing service ranges: %v and %v are of the same IP family", out[0], out[1])
	}
	return out, nil
}

// parsePorts reads "first-last".
func parsePorts(text string) (services.PortRange, error) {
	first, last, ok := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if !ok || errA != nil || errB != nil || a == 0 || a > b {
		return services.PortRange{}, fmt.Errorf("parsing node port range %q: it must be first-last, within 1-65535", text)
	}
	return services.PortRange{First: uint16(a), Last: uint16(b)}, nil
}
