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

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// FieldManager owns the rules of aggregated ClusterRoles.
const FieldManager = "clusterrole-aggregation-controller"

// Controller declares what keeps every aggregated ClusterRole the sum of its
// parts. It may grant what it does not have: upstream's role lets it escalate.
func Controller() controller.Controller {
	return controller.Controller{Name: FieldManager, Account: "clusterrole-aggregation-controller",
		Watches: "clusterroles.rbac.authorization.k8s.io", Writes: "patch,escalate clusterroles.rbac.authorization.k8s.io", Run: run}
}

// everything is the one key of the queue: any change may concern any sum, and a
// burst of changes is worth one pass.
const everything = "all"

// run keeps every aggregated ClusterRole the sum of its parts until ctx ends.
func run(ctx context.Context, e controller.Env) error {
	if err := e.Check(); err != nil {
		return err
	}
	roles, q := e.Informers.Rbac().V1().ClusterRoles(), controller.NewQueue()
	seen, err := controller.On(ctx, roles.Informer(), func(_, _ *rbacv1.ClusterRole, _ bool) { q.Add(everything) })
	if err != nil {
		return fmt.Errorf("watching ClusterRoles: %w", err)
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	a := &aggregator{Env: e, list: func() ([]*rbacv1.ClusterRole, error) { return roles.Lister().List(labels.Everything()) }}
	return e.Run(ctx, q, 1, a.pass)
}

type aggregator struct {
	controller.Env
	list func() ([]*rbacv1.ClusterRole, error)
}

func (c *aggregator) pass(ctx context.Context, _ string) (time.Duration, error) {
	all, err := c.list()
	if err != nil {
		return 0, fmt.Errorf("listing ClusterRoles: %w", err)
	}
	var failed []error
	for _, role := range all {
		sum, err := rules(role, all)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if role.AggregationRule == nil || equality.Semantic.DeepEqual(sum, role.Rules) {
			continue
		}
		failed = append(failed, c.write(ctx, role, sum))
	}
	return 0, errors.Join(failed...)
}

func (c *aggregator) write(ctx context.Context, role *rbacv1.ClusterRole, sum []rbacv1.PolicyRule) error {
	want := applyrbacv1.ClusterRole(role.Name).WithUID(role.UID)
	want.Rules = []applyrbacv1.PolicyRuleApplyConfiguration{}
	for i := range sum {
		r := &sum[i]
		want.WithRules(applyrbacv1.PolicyRule().WithVerbs(r.Verbs...).WithAPIGroups(r.APIGroups...).
			WithResources(r.Resources...).WithResourceNames(r.ResourceNames...).WithNonResourceURLs(r.NonResourceURLs...))
	}
	_, err := c.Client.RbacV1().ClusterRoles().Apply(ctx, want, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Deleted or made again meanwhile: its own event brings us back.
		return nil
	}
	if err != nil {
		return fmt.Errorf("applying the rules of ClusterRole %q: %w", role.Name, err)
	}
	c.Tell(controller.Note{Part: "rbac", Kind: "ClusterRole", Object: role, Decision: "aggregated rules", Level: slog.LevelDebug,
		Because: []journal.Fact{
			{Name: "rules before", Value: fmt.Sprint(len(role.Rules))}, {Name: "rules of its parts", Value: fmt.Sprint(len(sum))},
		}})
	return nil
}
