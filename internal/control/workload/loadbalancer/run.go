package loadbalancer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// The indexes this controller adds to the shared caches: Services of type
// LoadBalancer by their ports, pods by the ports they hold on their node, and
// endpoint slices by their Service.
const (
	byPort    = "berth-load-balancer-port"
	byService = "berth-service"
)

// Config is how Services get addresses.
type Config struct {
	// Reserved are ports that the cluster or the host itself needs on every
	// node, with their holders.
	Reserved map[Port]string
	// Pools are in the order in which they are asked.
	Pools []Pool
	// Classless is the class of Services that name none; empty is Class.
	Classless string
}

type reconciler struct {
	controller.Env
	Config
	queue    *controller.Queue
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	// balanced, held and slices hold the indexes above.
	balanced, held, slices cache.Indexer
	// told is the last problem of a Service by its UID.
	told sync.Map
	// has is what Services have of the pools, nil until it was read.
	mu  sync.Mutex
	has map[types.UID]given
}

// Run gives addresses until the context ends.
func Run(ctx context.Context, e controller.Env, cfg Config) error {
	cfg.Classless = cmp.Or(cfg.Classless, Class)
	core := e.Informers.Core().V1()
	services, nodes, pods := core.Services(), core.Nodes(), core.Pods()
	endpoints := e.Informers.Discovery().V1().EndpointSlices()
	r := &reconciler{Env: e, Config: cfg, queue: controller.NewQueue(), services: services.Lister(), nodes: nodes.Lister(),
		balanced: services.Informer().GetIndexer(), held: pods.Informer().GetIndexer(), slices: endpoints.Informer().GetIndexer()}
	err := errors.Join(
		kube.Index(services.Informer(), cache.Indexers{byPort: func(o any) ([]string, error) {
			return servicePorts(o.(*v1.Service)),
				nil
		}}),
		kube.Index(pods.Informer(), cache.Indexers{byPort: func(o any) ([]string, error) { return texts(hostPorts(o.(*v1.Pod))), nil }}),
		kube.Index(endpoints.Informer(),
			cache.Indexers{byService: func(o any) ([]string, error) { return serviceOf(o.(*discoveryv1.EndpointSlice)), nil }}))
	if err != nil {
		return err
	}
	a, err1 := controller.On(ctx, services.Informer(), func(old, s *v1.Service, gone bool) {
		r.service(old)
		r.service(s)
		r.poolEvent(old, false)
		r.poolEvent(s, gone)
	})
	b, err2 := controller.On(ctx, nodes.Informer(), func(old, n *v1.Node, gone bool) {
		if old == nil || gone || relevantState(old) != relevantState(n) {
			r.all()
			r.nodeEvent(old, n)
		}
	})
	c, err3 := controller.On(ctx, pods.Informer(), func(old, p *v1.Pod, _ bool) { r.pod(old); r.pod(p) })
	d, err4 := controller.On(ctx, endpoints.Informer(), func(_, s *discoveryv1.EndpointSlice, _ bool) {
		for _, key := range serviceOf(s) {
			r.queue.Add(key)
		}
	})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b, c, d); err != nil {
		return nil
	}
	return e.Run(ctx, r.queue, 2, r.sync)
}

// servicePorts are the index keys of a Service: none unless it wants a load
// balancer.
func servicePorts(s *v1.Service) []string {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	return texts(Ports(s))
}

func texts(ports []Port) []string {
	out := make([]string, 0, len(ports))
	for _, p := range ports {
		out = append(out, p.String())
	}
	return out
}

func serviceOf(s *discoveryv1.EndpointSlice) []string {
	if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
		return []string{s.Namespace + "/" + name}
	}
	return nil
}

// relevantState is the part of a node that affects load balancers, as text to
// compare; nodes change for many other reasons.
func relevantState(n *v1.Node) string {
	var b strings.Builder
	fmt.Fprint(&b, unfit(n))
	for _, a := range n.Status.Addresses {
		fmt.Fprintf(&b, " %s=%s", a.Type, a.Address)
	}
	return b.String()
}

// service looks at a Service and at those that share a port with it.
func (r *reconciler) service(s *v1.Service) {
	if s == nil || s.Spec.Type != v1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 0 {
		return
	}
	r.queue.Add(controller.Key(s))
	r.sharing(servicePorts(s))
}

func (r *reconciler) pod(p *v1.Pod) {
	if p != nil {
		r.sharing(texts(hostPorts(p)))
	}
}

// sharing looks at the Services that want one of the ports.
func (r *reconciler) sharing(ports []string) {
	for _, port := range ports {
		keys, err := r.balanced.IndexKeys(byPort, port)
		if err != nil {
			continue // before the index is there, every Service is still to come
		}
		for _, key := range keys {
			r.queue.Add(key)
		}
	}
}

// all looks at every Service that wants addresses or has some.
func (r *reconciler) all() {
	list, err := r.services.List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range list {
		if s.Spec.Type == v1.ServiceTypeLoadBalancer {
			r.queue.Add(controller.Key(s))
		}
	}
}

func (r *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	if key == poolsKey {
		return r.syncPools(ctx)
	}
	ns, name := controller.Split(key)
	s, err := r.services.Services(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if s.DeletionTimestamp != nil {
		r.told.Delete(s.UID)
	}
	in, err := r.input(s)
	if err != nil {
		return 0, err
	}
	return 0, r.write(ctx, s, plan(in))
}

// input gathers what decides over a Service.
func (r *reconciler) input(s *v1.Service) (input, error) {
	in := input{Service: s, Reserved: r.Reserved, Classless: r.Classless}
	var err error
	if in.Nodes, err = r.nodes.List(labels.Everything()); err != nil {
		return in, err
	}
	if s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		if in.Local, err = r.local(controller.Key(s)); err != nil {
			return in, err
		}
	}
	rivals, pods := map[string]*v1.Service{}, map[string]*v1.Pod{}
	for _, port := range servicePorts(s) {
		same, err := r.balanced.ByIndex(byPort, port)
		if err != nil {
			return in, err
		}
		for _, o := range same {
			rivals[controller.Key(o.(*v1.Service))] = o.(*v1.Service)
		}
		held, err := r.held.ByIndex(byPort, port)
		if err != nil {
			return in, err
		}
		for _, o := range held {
			pods[controller.Key(o.(*v1.Pod))] = o.(*v1.Pod)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(rivals)) {
		in.Rivals = append(in.Rivals, rivals[key])
	}
	for _, key := range slices.Sorted(maps.Keys(pods)) {
		in.Pods = append(in.Pods, pods[key])
	}
	return in, nil
}

// local names the nodes with ready endpoints of a Service.
func (r *reconciler) local(key string) (map[string]bool, error) {
	found, err := r.slices.ByIndex(byService, key)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, o := range found {
		for _, ep := range o.(*discoveryv1.EndpointSlice).Endpoints {
			if ep.NodeName != nil && (ep.Conditions.Ready == nil || *ep.Conditions.Ready) {
				out[*ep.NodeName] = true
			}
		}
	}
	return out, nil
}

// write puts the addresses into the Service's status, and tells what changed
// and what is wrong.
func (r *reconciler) write(ctx context.Context, s *v1.Service, res result) error {
	if res.Ignore {
		return nil
	}
	status := s.Status.DeepCopy()
	status.LoadBalancer.Ingress = res.Ingress
	meta.RemoveStatusCondition(&status.Conditions, PoolCondition)
	_, changed, err := kube.PatchStatus(ctx, r.Client.CoreV1().Services(s.Namespace), s, s.Status, status)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the addresses of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	// Many events lead to the same problem; it is told once.
	last, _ := r.told.Swap(s.UID, res.Problem)
	if changed || res.Problem != "" && last != res.Problem {
		r.report(s, res)
	}
	return nil
}

// report records one event and one journal entry.
func (r *reconciler) report(s *v1.Service, res result) {
	event := controller.Event{To: r.Recorder("service-controller"), Reason: "EnsuredLoadBalancer", Message: "Ensured load balancer"}
	decision := "gave it the addresses of nodes"
	switch had := len(s.Status.LoadBalancer.Ingress) > 0; {
	case len(res.Ingress) == 0:
		event.Type, event.Reason, event.Message = v1.EventTypeWarning, "UnAvailableLoadBalancer",
			"There are no available nodes for LoadBalancer: "+res.Problem
		if res.Held {
			event.Reason, event.Message = "SyncLoadBalancerFailed", "Error syncing load balancer: "+res.Problem
		}
		decision = "gave it no address"
	case res.Problem != "":
		event.Type, event.Reason, event.Message = v1.EventTypeWarning, "UpdatedLoadBalancer", "Updated load balancer with fewer hosts: "+
			res.Problem
	case had:
		event.Reason, event.Message = "UpdatedLoadBalancer", "Updated load balancer with new hosts"
	}
	because := []journal.Fact{{Name: "nodes", Value: cmp.Or(strings.Join(res.Nodes, ","), "none")}}
	if res.Problem != "" {
		because = append(because, journal.Fact{Name: "problem", Value: res.Problem})
	}
	r.Tell(controller.Note{Kind: "Service", Object: s, Decision: decision, Because: because, Event: event})
}
