package route

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// DefaultPeriod is upstream's --route-reconciliation-period.
const DefaultPeriod = 10 * time.Second

// Config is what the controller needs. Events and Metrics may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Events    record.EventRecorder // component route_controller
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Routes    cloudprovider.Routes
	// ClusterName tells the cloud whose routes they are; ClusterCIDRs are the
	// ranges in which every route is ours.
	ClusterName  string
	ClusterCIDRs []netip.Prefix
	// Period is how often the cloud is asked for its routes: it does not tell
	// when somebody changes them.
	Period time.Duration
}

// atOnce bounds the calls to the cloud.
const atOnce = 20

type shell struct {
	Config
	nodes cache.Indexer
	syncs prometheus.Counter
	wake  chan struct{}
}

// Run keeps the routes right until ctx ends: at each change of a node's ranges
// or addresses, and every period.
func Run(ctx context.Context, cfg Config) error {
	inf := cfg.Informers.Core().V1().Nodes().Informer()
	s := &shell{Config: cfg, nodes: inf.GetIndexer(), wake: make(chan struct{}, 1)}
	var err error
	if s.syncs, err = kube.Registered(cfg.Metrics, prometheus.NewCounter(prometheus.CounterOpts{Name: "route_controller_route_sync_total", Help: "Comparisons of the cloud's routes with the nodes."})); err != nil {
		return err
	}
	wake := func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, DeleteFunc: func(any) { wake() },
		UpdateFunc: func(old, o any) {
			a, b := old.(*v1.Node), o.(*v1.Node)
			if !slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) || !slices.Equal(a.Status.Addresses, b.Status.Addresses) {
				wake()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, reg) {
		return ctx.Err()
	}
	for ctx.Err() == nil {
		s.syncs.Inc()
		if err := s.reconcile(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("reconciling routes", "error", err)
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

func (s *shell) reconcile(ctx context.Context) error {
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
	plan := Compare(nodes, have, s.ClusterCIDRs)
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
			errs = append(errs, s.condition(ctx, byName[name], Condition(true)))
		}
	}
	for name, bad := range missed {
		if bad {
			errs = append(errs, s.condition(ctx, byName[name], Condition(false)))
		}
	}
	return errors.Join(errs...)
}

// each calls do for all routes, a few at a time.
func (s *shell) each(routes []*cloudprovider.Route, do func(*cloudprovider.Route) error) error {
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

func (s *shell) delete(ctx context.Context, r *cloudprovider.Route) error {
	if err := s.Routes.DeleteRoute(ctx, s.ClusterName, r); err != nil {
		return fmt.Errorf("deleting route %s to %s: %w", r.DestinationCIDR, r.TargetNode, err)
	}
	s.note(string(r.TargetNode), "", "deleted its route", r)
	return nil
}

func (s *shell) create(ctx context.Context, n *v1.Node, r *cloudprovider.Route) error {
	if err := s.Routes.CreateRoute(ctx, s.ClusterName, string(n.UID), r); err != nil {
		err = fmt.Errorf("creating route %s to %s: %w", r.DestinationCIDR, r.TargetNode, err)
		if s.Events != nil {
			s.Events.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}, v1.EventTypeWarning, "FailedToCreateRoute", err.Error())
		}
		return err
	}
	s.note(n.Name, string(n.UID), "created its route", r)
	return nil
}

func (s *shell) note(name, uid, decision string, r *cloudprovider.Route) {
	s.Log.Info(decision, "node", name, "route", r.DestinationCIDR)
	s.Journal.Append(journal.Record{Time: time.Now(), Part: "route", Object: journal.Ref{Kind: "Node", Name: name, UID: uid}, Decision: decision,
		Because: []journal.Fact{{Name: "route", Value: r.DestinationCIDR}}})
}

// condition writes the one condition that is this controller's.
func (s *shell) condition(ctx context.Context, n *v1.Node, want v1.NodeCondition) error {
	if says(n, want) {
		return nil
	}
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.Now(), metav1.Now()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"conditions": []v1.NodeCondition{want}}})
	if err != nil {
		return err
	}
	_, err = s.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: "berth-route"}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching condition NetworkUnavailable of Node %s: %w", n.Name, err)
	}
	return nil
}
