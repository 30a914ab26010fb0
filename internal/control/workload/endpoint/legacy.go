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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/endpointslice"
	endpointutil "k8s.io/endpointslice/util"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

const (
	legacyBy = "endpoint-controller"
	// managedBy labels Endpoints that a controller keeps.
	managedBy    = "endpoints.kubernetes.io/managed-by"
	overCapacity = "endpoints.kubernetes.io/over-capacity"
	// maxLegacy bounds one Endpoints object; larger services need slices. Pods
	// that are not ready are left out first, as kube-controller-manager does.
	maxLegacy = 1000
)

// subsets makes the Endpoints content of a service from its pods: one subset
// per distinct list of ports, in a stable order.
func subsets(svc *v1.Service, pods []*v1.Pod) (out []v1.EndpointSubset, truncated bool) {
	type group struct {
		ports           []v1.EndpointPort
		ready, notReady []v1.EndpointAddress
	}
	groups := map[string]*group{}
	members := eligible(svc, pods)
	if truncated = len(members) > maxLegacy; truncated {
		sort.SliceStable(members, func(i, j int) bool { return members[i].ready && !members[j].ready })
		members = members[:maxLegacy]
	}
	for _, m := range members {
		p, key := m.pod, fmt.Sprintf("%+v", m.ports)
		g := groups[key]
		if g == nil {
			g = &group{ports: m.ports}
			groups[key] = g
		}
		a := v1.EndpointAddress{IP: m.ip, TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		if p.Spec.NodeName != "" {
			a.NodeName = &p.Spec.NodeName
		}
		if endpointutil.ShouldSetHostname(p, svc) {
			a.Hostname = p.Spec.Hostname
		}
		if m.ready {
			g.ready = append(g.ready, a)
		} else {
			g.notReady = append(g.notReady, a)
		}
	}
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		g := groups[k]
		for _, list := range [][]v1.EndpointAddress{g.ready, g.notReady} {
			sort.Slice(list, func(i, j int) bool { return list[i].IP < list[j].IP })
		}
		out = append(out, v1.EndpointSubset{Addresses: g.ready, NotReadyAddresses: g.notReady, Ports: g.ports})
	}
	return out, truncated
}

// endpointPod is a pod that receives a service's traffic, or will when it is ready.
type endpointPod struct {
	pod   *v1.Pod
	ip    string
	ports []v1.EndpointPort
	ready bool
}

// eligible are the pods that belong in a service's Endpoints, by name.
func eligible(svc *v1.Service, pods []*v1.Pod) (out []endpointPod) {
	for _, p := range sortedByName(pods) {
		ip, ports := addressFor(svc, p), portsFor(svc, p)
		if ip == "" || len(ports) == 0 && len(svc.Spec.Ports) > 0 ||
			!endpointutil.ShouldPodBeInEndpoints(p, svc.Spec.PublishNotReadyAddresses) {
			continue
		}
		out = append(out, endpointPod{p, ip, ports, svc.Spec.PublishNotReadyAddresses || podutil.Ready(p)})
	}
	return out
}

func sortedByName(pods []*v1.Pod) []*v1.Pod {
	pods = append([]*v1.Pod(nil), pods...)
	sort.Slice(pods, func(i, j int) bool { return pods[i].Name < pods[j].Name })
	return pods
}

// addressFor returns the pod's address of the service's first family.
func addressFor(svc *v1.Service, p *v1.Pod) string {
	six := false
	if len(svc.Spec.IPFamilies) > 0 {
		six = svc.Spec.IPFamilies[0] == v1.IPv6Protocol
	} else if ip := net.ParseIP(svc.Spec.ClusterIP); ip != nil {
		six = ip.To4() == nil
	} else {
		return p.Status.PodIP
	}
	for _, a := range p.Status.PodIPs {
		if ip := net.ParseIP(a.IP); ip != nil && (ip.To4() == nil) == six {
			return a.IP
		}
	}
	return ""
}

func portsFor(svc *v1.Service, p *v1.Pod) (out []v1.EndpointPort) {
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		n, err := endpointslice.FindPort(p, sp)
		if err != nil {
			continue // this pod does not have the named port
		}
		out = append(out, v1.EndpointPort{Name: sp.Name, Port: int32(n), Protocol: sp.Protocol, AppProtocol: sp.AppProtocol})
	}
	return out
}

// RunLegacy keeps the Endpoints of Services with a selector.
func RunLegacy(ctx context.Context, e controller.Env) error {
	core := e.Informers.Core().V1()
	services, pods, endpoints := core.Services().Lister(), core.Pods().Lister(), core.Endpoints().Lister()
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, core.Services().Informer(), func(_, s *v1.Service, _ bool) { q.Add(controller.Key(s)) })
	b, err2 := controller.On(ctx, core.Pods().Informer(), onPod(services, q))
	c, err3 := controller.On(ctx, core.Endpoints().Informer(), func(_, o *v1.Endpoints, gone bool) {
		if gone || o.Labels[managedBy] == legacyBy {
			q.Add(controller.Key(o))
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
		have, err := endpoints.Endpoints(ns).Get(name)
		if apierrors.IsNotFound(err) {
			have, err = nil, nil
		}
		if err != nil {
			return 0, err
		}
		svc, err := services.Services(ns).Get(name)
		if apierrors.IsNotFound(err) {
			if have != nil && have.Labels[managedBy] == legacyBy {
				err := e.Client.CoreV1().Endpoints(ns).Delete(ctx, name, kube.SameUID(have))
				return 0, ignoreNotFound(err)
			}
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		if svc.Spec.Selector == nil || svc.Spec.Type == v1.ServiceTypeExternalName || svc.DeletionTimestamp != nil {
			return 0, nil
		}
		members, err := pods.Pods(ns).List(labels.SelectorFromValidatedSet(svc.Spec.Selector))
		if err != nil {
			return 0, err
		}
		return 0, writeLegacy(ctx, e, svc, have, members)
	})
}

func writeLegacy(ctx context.Context, e controller.Env, svc *v1.Service, have *v1.Endpoints, pods []*v1.Pod) error {
	subsets, truncated := subsets(svc, pods)
	want := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: svc.Name, Namespace: svc.Namespace, Labels: maps.Clone(svc.Labels)},
		Subsets: subsets}
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[managedBy] = legacyBy
	if svc.Spec.ClusterIP == v1.ClusterIPNone {
		want.Labels[v1.IsHeadlessService] = ""
	} else {
		delete(want.Labels, v1.IsHeadlessService)
	}
	if truncated {
		want.Annotations = map[string]string{overCapacity: "truncated"}
	}
	api := e.Client.CoreV1().Endpoints(svc.Namespace)
	var err error
	if have == nil {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			return nil
		}
	} else {
		if equality.Semantic.DeepEqual(have.Subsets, want.Subsets) && maps.Equal(have.Labels, want.Labels) &&
			have.Annotations[overCapacity] == want.Annotations[overCapacity] {
			return nil
		}
		over := map[string]*string{overCapacity: nil}
		if truncated {
			over[overCapacity] = kube.To("truncated")
		}
		_, err = kube.Patch(ctx, api, have, kube.Unchanged, kube.Change{Labels: kube.Instead(have.Labels, want.Labels), Annotations: over,
			Fields: map[string]any{"subsets": subsets}})
	}
	if err != nil {
		return fmt.Errorf("writing endpoints %s: %w", controller.Key(svc), err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
