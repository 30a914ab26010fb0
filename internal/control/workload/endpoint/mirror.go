package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

const (
	mirrorBy = "endpointslicemirroring-controller.k8s.io"
	// leaderAnnotation marks Endpoints used as a lock, not for traffic.
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
	// maxMirrored bounds the addresses mirrored per subset; ready ones go first.
	maxMirrored = 1000
)

// mirrored says whether hand-written Endpoints of a service become slices.
func mirrored(svc *v1.Service, ep *v1.Endpoints) bool {
	if svc == nil || ep == nil || svc.Spec.Selector != nil || ep.DeletionTimestamp != nil {
		return false
	}
	_, lock := ep.Annotations[leaderAnnotation]
	return !lock && ep.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// mirror makes the slices for hand-written Endpoints: per subset and address
// family, at most 100 addresses each, without names.
func mirror(svc *v1.Service, ep *v1.Endpoints) (out []*discoveryv1.EndpointSlice) {
	for i := range ep.Subsets {
		sub := &ep.Subsets[i]
		byFamily := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
		left := maxMirrored
		add := func(list []v1.EndpointAddress, ready bool) {
			for _, a := range list {
				ip := net.ParseIP(a.IP)
				if ip == nil || left == 0 {
					continue
				}
				left--
				family := discoveryv1.AddressTypeIPv4
				if ip.To4() == nil {
					family = discoveryv1.AddressTypeIPv6
				}
				e := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					TargetRef: a.TargetRef, NodeName: a.NodeName}
				if a.Hostname != "" {
					e.Hostname = &a.Hostname
				}
				byFamily[family] = append(byFamily[family], e)
			}
		}
		add(sub.Addresses, true)
		add(sub.NotReadyAddresses, false)
		var ports []discoveryv1.EndpointPort
		for j := range sub.Ports {
			p := sub.Ports[j]
			ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
		}
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			list := byFamily[family]
			for len(list) > 0 {
				n := min(len(list), maxPerSlice)
				out = append(out, mirrorSlice(svc, ep, family, list[:n], ports))
				list = list[n:]
			}
		}
	}
	return out
}

func mirrorSlice(svc *v1.Service, ep *v1.Endpoints, family discoveryv1.AddressType, list []discoveryv1.Endpoint,
	ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	l := maps.Clone(ep.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[discoveryv1.LabelServiceName], l[discoveryv1.LabelManagedBy] = svc.Name, mirrorBy
	notes := map[string]string{}
	for k, v := range ep.Annotations {
		if k != v1.LastAppliedConfigAnnotation && k != v1.EndpointsLastChangeTriggerTime {
			notes[k] = v
		}
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: svc.Name + "-", Namespace: svc.Namespace, Labels: l,
		Annotations:     notes,
		OwnerReferences: []metav1.OwnerReference{podcontrol.Owner(ep, "v1", "Endpoints")}}, AddressType: family, Endpoints: list,
		Ports: ports}
}

// match pairs wanted slices with existing ones that need the fewest writes:
// equal ones stay, ones of the same family and ports are updated, the rest is
// created or deleted.
func match(want, have []*discoveryv1.EndpointSlice) (create []*discoveryv1.EndpointSlice,
	update map[*discoveryv1.EndpointSlice]*discoveryv1.EndpointSlice, remove []*discoveryv1.EndpointSlice) {
	have = append([]*discoveryv1.EndpointSlice(nil), have...)
	sort.Slice(have, func(i, j int) bool { return have[i].Name < have[j].Name })
	used := map[*discoveryv1.EndpointSlice]bool{}
	update = map[*discoveryv1.EndpointSlice]*discoveryv1.EndpointSlice{}
	find := func(w *discoveryv1.EndpointSlice, same func(a, b *discoveryv1.EndpointSlice) bool) *discoveryv1.EndpointSlice {
		for _, h := range have {
			if !used[h] && h.AddressType == w.AddressType && same(h, w) {
				used[h] = true
				return h
			}
		}
		return nil
	}
	var rest []*discoveryv1.EndpointSlice
	for _, w := range want {
		if find(w, func(a, b *discoveryv1.EndpointSlice) bool {
			return equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports) &&
				maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
		}) == nil {
			rest = append(rest, w)
		}
	}
	for _, w := range rest {
		if h := find(w, func(a, b *discoveryv1.EndpointSlice) bool { return true }); h != nil {
			update[h] = w
		} else {
			create = append(create, w)
		}
	}
	for _, h := range have {
		if !used[h] {
			remove = append(remove, h)
		}
	}
	return create, update, remove
}

// RunMirror mirrors hand-written Endpoints until the context ends.
func RunMirror(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	sliceInf := e.Informers.Discovery().V1().EndpointSlices().Informer()
	if err := indexByService(sliceInf); err != nil {
		return err
	}
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, core.Services().Informer(), func(_, s *v1.Service, _ bool) { q.Add(controller.Key(s)) })
	b, err2 := controller.On(ctx, core.Endpoints().Informer(), func(_, o *v1.Endpoints, _ bool) {
		if o.Labels[managedBy] != legacyBy {
			q.Add(controller.Key(o))
		}
	})
	c, err3 := controller.On(ctx, sliceInf, func(_, s *discoveryv1.EndpointSlice, _ bool) {
		if s.Labels[discoveryv1.LabelManagedBy] == mirrorBy {
			q.Add(s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName])
		}
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, c); err != nil {
		return nil
	}
	return e.Run(ctx, q, 5, func(ctx context.Context, key string) (time.Duration, error) {
		ns, name := controller.Split(key)
		svc, err1 := core.Services().Lister().Services(ns).Get(name)
		ep, err2 := core.Endpoints().Lister().Endpoints(ns).Get(name)
		for _, err := range []error{err1, err2} {
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, err
			}
		}
		var have, want []*discoveryv1.EndpointSlice
		for _, s := range podcontrol.Indexed[*discoveryv1.EndpointSlice](sliceInf, byService, key) {
			if s.Labels[discoveryv1.LabelManagedBy] == mirrorBy {
				have = append(have, s)
			}
		}
		if err1 == nil && err2 == nil && mirrored(svc, ep) {
			want = mirror(svc, ep)
		}
		return 0, writeMirror(ctx, e, ns, want, have)
	})
}

func writeMirror(ctx context.Context, e controller.Env, ns string, want, have []*discoveryv1.EndpointSlice) error {
	create, update, remove := match(want, have)
	api := e.Client.DiscoveryV1().EndpointSlices(ns)
	var errs []error
	for _, s := range create {
		if _, err := api.Create(ctx, s, metav1.CreateOptions{}); err != nil && !apierrors.HasStatusCause(err,
			v1.NamespaceTerminatingCause) {
			errs = append(errs, fmt.Errorf("creating a slice for %s/%s: %w", ns, s.Labels[discoveryv1.LabelServiceName], err))
		}
	}
	for h, w := range update {
		_, err := kube.Patch(ctx, api, h, kube.Unchanged, kube.Change{Labels: kube.Instead(h.Labels, w.Labels),
			Annotations: kube.Instead(h.Annotations, w.Annotations),
			Fields:      map[string]any{"endpoints": w.Endpoints, "ports": w.Ports}})
		if err != nil {
			errs = append(errs, fmt.Errorf("updating slice %s: %w", controller.Key(h), err))
		}
	}
	for _, h := range remove {
		if err := ignoreNotFound(api.Delete(ctx, h.Name, kube.SameUID(h))); err != nil {
			errs = append(errs, fmt.Errorf("deleting slice %s: %w", controller.Key(h), err))
		}
	}
	return errors.Join(errs...)
}
