// Package aggregate fills ClusterRoles that are the sum of others: those with
// an aggregationRule get the rules of every ClusterRole its selectors match.
package aggregate

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// rules works out what role's rules should be, given all ClusterRoles: those
// of each selector in turn, roles by name, every distinct rule once. The role
// itself never counts. It returns nil, nil for a role that is no sum.
func rules(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return nil, nil
	}
	byName := slices.Clone(all)
	slices.SortFunc(byName, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	sum := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("reading aggregationRule.clusterRoleSelectors[%d] of ClusterRole %q: %w", i, role.Name, err)
		}
		for _, part := range byName {
			if part.Name != role.Name && selector.Matches(labels.Set(part.Labels)) {
				sum = addDistinct(sum, part.Rules)
			}
		}
	}
	return sum, nil
}

func addDistinct(sum, more []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for _, rule := range more {
		same := func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }
		if !slices.ContainsFunc(sum, same) {
			sum = append(sum, rule)
		}
	}
	return sum
}

// AggregateAll fills the rules of every aggregated role among roles, in place, until
// nothing changes: an aggregated role may itself be part of another.
func AggregateAll(roles []*rbacv1.ClusterRole) error {
	// Each pass settles at least one more level, and levels cannot outnumber roles.
	for range roles {
		changed := false
		for _, role := range roles {
			sum, err := rules(role, roles)
			if err != nil {
				return err
			}
			if role.AggregationRule != nil && !equality.Semantic.DeepEqual(sum, role.Rules) {
				role.Rules, changed = sum, true
			}
		}
		if !changed {
			return nil
		}
	}
	return nil
}
