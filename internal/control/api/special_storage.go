package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/addresses"
	certificateapi "github.com/berth-dev/berth/internal/control/api/certificates"
	"github.com/berth-dev/berth/internal/control/api/namespaces"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/api/nodes"
	"github.com/berth-dev/berth/internal/control/api/services"
	"github.com/berth-dev/berth/internal/control/api/storebase"
	"github.com/berth-dev/berth/internal/control/api/volumes"
)

// storageSpecials lists the special resources other than pods.
func (s *Server) storageSpecials(kit storebase.Kit, links nodelink.Finder) ([]special, error) {
	ranges, err := s.serviceRanges()
	if err != nil {
		return nil, err
	}
	var ports services.PortRange
	if _, err := fmt.Sscanf(s.cfg.NodePortRange, "%d-%d", &ports.First, &ports.Last); err != nil || ports.First == 0 || ports.Last < ports.First {
		return nil, fmt.Errorf("configuring API server: node port range %q must be two ports such as %s", s.cfg.NodePortRange, defaultNodePortRange)
	}
	type opts = generic.RESTOptionsGetter
	type storages = map[string]rest.Storage
	var network storages // the services below keep their addresses in it
	return []special{
		{networkingv1.SchemeGroupVersion, func(o opts) (storages, error) {
			made, err := addresses.NewStorage(o, addresses.Deps{Kit: kit})
			network = made
			return made, err
		}},
		{corev1.SchemeGroupVersion, func(o opts) (storages, error) {
			made, err := services.NewStorage(o, services.Deps{
				Kit:        kit,
				Addresses:  network["ipaddresses"].(services.AddressStore),
				Ranges:     ranges,
				MoreRanges: addresses.Ranges(network),
				NodePorts:  ports,
				Slices:     s.slicesOf,
				Log:        s.cfg.Log,
			})
			if err == nil {
				s.services = made["services"].(*services.REST)
			}
			return made, err
		}},
		{corev1.SchemeGroupVersion, func(o opts) (storages, error) {
			return nodes.NewStorage(o, nodes.Deps{Kit: kit, Nodes: links})
		}},
		{corev1.SchemeGroupVersion, func(o opts) (storages, error) {
			return namespaces.NewStorage(o, namespaces.Deps{Kit: kit})
		}},
		{corev1.SchemeGroupVersion, func(o opts) (storages, error) {
			return volumes.NewStorage(o, volumes.Deps{Kit: kit})
		}},
		{certificatesv1.SchemeGroupVersion, func(o opts) (storages, error) {
			return certificateapi.NewStorage(o, certificateapi.Deps{Kit: kit})
		}},
	}, nil
}

// serviceRanges parses the configured ranges.
func (s *Server) serviceRanges() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range s.cfg.ServiceCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("configuring API server: service range: %w", err)
		}
		out = append(out, p.Masked())
	}
	if len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("configuring API server: service ranges %v must be of different IP families", out)
	}
	return out, nil
}

// slicesOf lists the endpoint slices of a service.
func (s *Server) slicesOf(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// keepAllocations shows the configured service ranges as an object, and keeps the record of addresses and ports true,
// until ctx ends.
func (s *Server) keepAllocations(ctx context.Context) {
	ranges, err := s.serviceRanges()
	if err != nil {
		s.cfg.Log.Error("publishing service ranges", "error", err) // New has parsed them: unreachable
		return
	}
	for pause := keepFirstRetry; ; pause = min(2*pause, keepLastRetry) {
		err := addresses.Publish(ctx, s.client.NetworkingV1().ServiceCIDRs(), ranges)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.cfg.Log.Warn("publishing service ranges", "error", err, "retry", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause/2)):
		}
	}
	s.services.Run(ctx)
}
