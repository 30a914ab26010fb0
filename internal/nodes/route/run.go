package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// DefaultPeriod is upstream's --route-reconciliation-period.
const DefaultPeriod = 10 * time.Second

// Config is what the controller needs beside its environment.
type Config struct {
	Routes cloudprovider.Routes
	// ClusterName tells the cloud whose routes they are; ClusterCIDRs are the
	// ranges in which every route is ours.
	ClusterName  string
	ClusterCIDRs []netip.Prefix
	// Period is how often the cloud is asked for its routes: it does not tell
	// when someone changes them.
	Period time.Duration
}

// atOnce bounds the calls to the cloud.
const atOnce = 20

type reconciler struct {
	controller.Env
	Config
	events record.EventRecorder
	nodes  cache.Indexer
	syncs  prometheus.Counter
	wake   chan struct{}
}

// Run keeps the routes right until ctx ends: at each change of a node's ranges
// or addresses, and every period.
func Run(ctx context.Context, e controller.Env, cfg Config) error {
	if err := e.Check(); err != nil {
		return err
	}
	inf := e.Informers.Core().V1().Nodes().Informer()
	s := &reconciler{Env: e, Config: cfg, events: e.Recorder("route_controller"), nodes: inf.GetIndexer(), wake: make(chan struct{}, 1)}
	var err error
	if s.syncs, err = kube.Registered(e.Registerer, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "route_controller_route_sync_total", Help: "Comparisons of the cloud's routes with the nodes."})); err != nil {
		return err
	}
	wake := func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	seen, err := controller.On(ctx, inf, func(old, n *v1.Node, gone bool) {
		if gone || old == nil || !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) || !slices.Equal(old.Status.Addresses,
			n.Status.Addresses) {
			wake()
		}
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	if err := e.Synced(ctx, seen); err != nil {
		return err
	}
	for ctx.Err() == nil {
		s.syncs.Inc()
		if err := s.reconcile(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("reconciling routes", "err", err)
		}
		timer := time.NewTimer(cfg.Period)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ctx.Err()
}

func (s *reconciler) reconcile(ctx context.Context) error {
	have, err := s.Routes.ListRoutes(ctx, s.ClusterName)
	if err != nil {
		return fmt.Errorf("listing the cloud's routes: %w", err)
	}
	byName := map[string]*v1.Node{}
	var nodes []*v1.Node
	for _, o := range s.nodes.List() {
		n := o.(*v1.Node)
		nodes = append(nodes, n)
		byName[n.Name] = n
	}
	plan := compare(nodes, have, s.ClusterCIDRs)
	// A route in the way goes before the one that takes its place.
	errs := []error{s.each(plan.Delete, func(r *cloudprovider.Route) error { return s.delete(ctx, r) })}
	made := map[string]bool{}
	for name := range plan.Kept {
		made[name] = true
	}
	var mu sync.Mutex
	missed := map[string]bool{}
	for _, name := range plan.Bare {
		missed[name] = true
	}
	errs = append(errs, s.each(plan.Create, func(r *cloudprovider.Route) error {
		n := byName[string(r.TargetNode)]
		err := s.create(ctx, n, r)
		mu.Lock()
		defer mu.Unlock()
		made[n.Name] = true
		missed[n.Name] = missed[n.Name] || err != nil
		return err
	}))
	for name := range made {
		if !missed[name] {
			errs = append(errs, s.condition(ctx, byName[name], condition(true)))
		}
	}
	for name, bad := range missed {
		if bad {
			errs = append(errs, s.condition(ctx, byName[name], condition(false)))
		}
	}
	return errors.Join(errs...)
}

// each calls do for all routes, a few at a time.
func (s *reconciler) each(routes []*cloudprovider.Route, do func(*cloudprovider.Route) error) error {
	errs := make([]error, len(routes))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, r := range routes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(r)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *reconciler) delete(ctx context.Context, r *cloudprovider.Route) error {
	if err := s.Routes.DeleteRoute(ctx, s.ClusterName, r); err != nil {
		return fmt.Errorf("deleting route %s to %s: %w", r.DestinationCIDR, r.TargetNode, err)
	}
	s.record(&metav1.ObjectMeta{Name: string(r.TargetNode)}, "deleted its route", r)
	return nil
}

func (s *reconciler) create(ctx context.Context, n *v1.Node, r *cloudprovider.Route) error {
	if err := s.Routes.CreateRoute(ctx, s.ClusterName, string(n.UID), r); err != nil {
		err = fmt.Errorf("creating route %s to %s: %w", r.DestinationCIDR, r.TargetNode, err)
		s.Tell(controller.Note{Kind: "Node", Object: n, Event: controller.Event{To: s.events, Type: v1.EventTypeWarning,
			Reason: "FailedToCreateRoute", Message: err.Error()}})
		return err
	}
	s.record(n, "created its route", r)
	return nil
}

func (s *reconciler) record(n metav1.Object, decision string, r *cloudprovider.Route) {
	s.Tell(controller.Note{Part: "route", Kind: "Node", Object: n, Decision: decision,
		Because: []journal.Fact{{Name: "route", Value: r.DestinationCIDR}}})
}

// condition writes the one condition that is this controller's.
func (s *reconciler) condition(ctx context.Context, n *v1.Node, want v1.NodeCondition) error {
	if says(n, want) {
		return nil
	}
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.Now(), metav1.Now()
	_, err := kube.Patch(ctx, s.Client.CoreV1().Nodes(), n, kube.SameObject, kube.Change{
		Status: kube.Conditions[v1.NodeCondition]{Conditions: []v1.NodeCondition{want}}, Subresource: "status", Strategic: true,
		Manager: "berth-route"})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching condition NetworkUnavailable of Node %s: %w", n.Name, err)
	}
	return nil
}
