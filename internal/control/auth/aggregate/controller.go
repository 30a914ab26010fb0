package aggregate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/journal"
)

// FieldManager owns the rules of aggregated ClusterRoles.
const FieldManager = "clusterrole-aggregation-controller"

// Config is what the controller needs. The caller starts Informers.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	// Journal may be nil.
	Journal journal.Sink
}

// Run keeps every aggregated ClusterRole the sum of its parts until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Log == nil {
		return errors.New("starting ClusterRole aggregation: Client, Informers and Log are required")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	roles := cfg.Informers.Rbac().V1().ClusterRoles()
	c := &controller{Config: cfg, list: func() ([]*rbacv1.ClusterRole, error) { return roles.Lister().List(labels.Everything()) }}
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer c.queue.ShutDown()
	registration, err := roles.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.wake() },
		UpdateFunc: func(any, any) { c.wake() },
		DeleteFunc: func(any) { c.wake() },
	})
	if err != nil {
		return fmt.Errorf("watching ClusterRoles: %w", err)
	}
	// The handler must not outlive the queue it feeds.
	defer func() { _ = roles.Informer().RemoveEventHandler(registration) }()
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil
	}
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for c.next(ctx) {
	}
	return nil
}

type controller struct {
	Config
	list  func() ([]*rbacv1.ClusterRole, error)
	queue workqueue.TypedRateLimitingInterface[string]
}

// everything is the one queue entry: any change may concern any sum, and a
// burst of changes is worth one pass.
const everything = "all"

func (c *controller) wake() { c.queue.Add(everything) }

func (c *controller) next(ctx context.Context) bool {
	item, stopped := c.queue.Get()
	if stopped {
		return false
	}
	defer c.queue.Done(item)
	if err := c.pass(ctx); err != nil {
		c.Log.Warn("aggregating ClusterRoles; will try again", "err", err)
		c.queue.AddRateLimited(item)
		return true
	}
	c.queue.Forget(item)
	return true
}

func (c *controller) pass(ctx context.Context) error {
	all, err := c.list()
	if err != nil {
		return fmt.Errorf("listing ClusterRoles: %w", err)
	}
	var failed []error
	for _, role := range all {
		sum, err := Rules(role, all)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if role.AggregationRule == nil || equality.Semantic.DeepEqual(sum, role.Rules) {
			continue
		}
		failed = append(failed, c.write(ctx, role, sum))
	}
	return errors.Join(failed...)
}

func (c *controller) write(ctx context.Context, role *rbacv1.ClusterRole, sum []rbacv1.PolicyRule) error {
	want := applyrbacv1.ClusterRole(role.Name).WithUID(role.UID)
	want.Rules = []applyrbacv1.PolicyRuleApplyConfiguration{}
	for i := range sum {
		r := &sum[i]
		want.WithRules(applyrbacv1.PolicyRule().WithVerbs(r.Verbs...).WithAPIGroups(r.APIGroups...).
			WithResources(r.Resources...).WithResourceNames(r.ResourceNames...).WithNonResourceURLs(r.NonResourceURLs...))
	}
	_, err := c.Client.RbacV1().ClusterRoles().Apply(ctx, want, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Deleted or made anew meanwhile: its own event brings us back.
		return nil
	}
	if err != nil {
		return fmt.Errorf("applying the rules of ClusterRole %q: %w", role.Name, err)
	}
	c.Journal.Append(journal.Record{
		Time: time.Now(), Part: "rbac", Object: journal.Ref{Kind: "ClusterRole", Name: role.Name, UID: string(role.UID)},
		Decision: "aggregated rules",
		Because: []journal.Fact{
			{Name: "rules before", Value: fmt.Sprint(len(role.Rules))}, {Name: "rules of its parts", Value: fmt.Sprint(len(sum))},
		},
	})
	return nil
}
