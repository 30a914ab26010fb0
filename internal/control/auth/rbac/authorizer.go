package rbac

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Authorizer answers from an Index kept current by informers. Safe for
// concurrent use; it never denies, it only has no opinion.
type Authorizer struct {
	mu     sync.RWMutex
	index  *Index
	synced []cache.ResourceEventHandlerRegistration
}

// firstLists bounds how long a request that nothing allows yet waits for the
// roles and bindings that a server reads at its start.
const firstLists = 5 * time.Second

// New registers handlers on the factory's four RBAC informers. The caller
// starts the factory; until HasSynced the answers are incomplete.
func New(factory informers.SharedInformerFactory) (*Authorizer, error) {
	a := &Authorizer{index: NewIndex()}
	rbac := factory.Rbac().V1()
	for _, feed := range []struct {
		informer cache.SharedIndexInformer
		set      func(obj any)
		forget   func(namespace, name string)
	}{
		{rbac.ClusterRoles().Informer(), a.setRole, a.forgetRole},
		{rbac.Roles().Informer(), a.setRole, a.forgetRole},
		{rbac.ClusterRoleBindings().Informer(), a.setBinding, a.forgetBinding},
		{rbac.RoleBindings().Informer(), a.setBinding, a.forgetBinding},
	} {
		registration, err := feed.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    feed.set,
			UpdateFunc: func(_, obj any) { feed.set(obj) },
			DeleteFunc: func(obj any) {
				if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
					feed.forget(key.Namespace, key.Name)
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watching RBAC objects: %w", err)
		}
		a.synced = append(a.synced, registration)
	}
	return a, nil
}

// HasSynced says whether every role and binding of the first lists is in.
func (a *Authorizer) HasSynced() bool {
	for _, synced := range a.synced {
		if !synced.HasSynced() {
			return false
		}
	}
	return true
}

// wait waits for the first lists; it says whether it had to, and they came.
func (a *Authorizer) wait(ctx context.Context) bool {
	if a.HasSynced() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, firstLists)
	defer cancel()
	for _, synced := range a.synced {
		select {
		case <-synced.HasSyncedChecker().Done():
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (a *Authorizer) setRole(obj any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		a.index.SetRole(RoleKey{Name: o.Name}, o.Rules)
	case *rbacv1.Role:
		a.index.SetRole(RoleKey{o.Namespace, o.Name}, o.Rules)
	}
}

func (a *Authorizer) forgetRole(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index.DeleteRole(RoleKey{namespace, name})
}

func (a *Authorizer) setBinding(obj any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch o := obj.(type) {
	case *rbacv1.ClusterRoleBinding:
		a.index.SetBinding(BindingKey{Name: o.Name}, o.RoleRef, o.Subjects)
	case *rbacv1.RoleBinding:
		a.index.SetBinding(BindingKey{o.Namespace, o.Name}, o.RoleRef, o.Subjects)
	}
}

func (a *Authorizer) forgetBinding(namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index.DeleteBinding(BindingKey{namespace, name})
}

// Authorize allows what a binding grants and has no opinion on the rest. A
// server that has just started waits for its roles before it refuses: clients
// take a refusal for the last word.
func (a *Authorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	verdict := a.evaluate(attributes)
	if !verdict.Allowed && a.wait(ctx) {
		verdict = a.evaluate(attributes)
	}
	if verdict.Allowed {
		return authorizer.DecisionAllow, verdict.Reason, nil
	}
	return authorizer.DecisionNoOpinion, verdict.Reason, nil
}

func (a *Authorizer) evaluate(attributes authorizer.Attributes) verdict {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.index.Evaluate(attributes)
}

// ConditionsAwareAuthorize answers like Authorize: RBAC knows no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attributes authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attributes))
}

// EvaluateConditions refuses: this authorizer never hands out conditions.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// Rules returns what the user may do in the namespace (cluster-wide rules
// included). The error names bound roles that do not exist; the rules are
// valid beside it, and must not be modified.
func (a *Authorizer) Rules(who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	rules, missing := a.index.Rules(who, namespace)
	if len(missing) > 0 {
		return rules, errors.New(missingReason(missing)[len("RBAC: "):])
	}
	return rules, nil
}

// RoleRules returns one role's rules; they must not be modified.
func (a *Authorizer) RoleRules(key RoleKey) ([]rbacv1.PolicyRule, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.index.RoleRules(key)
}

// RulesFor lists the user's rules in the form reviews show. Incomplete is
// true when a bound role does not exist.
func (a *Authorizer) RulesFor(_ context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo,
	[]authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := a.Rules(who, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for i := range rules {
		r := &rules[i]
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, paths, err != nil, err
}
