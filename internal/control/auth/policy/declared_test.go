package policy_test

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/berth-dev/berth/internal/control/auth/policy"
	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/nodes"
)

func rules(t *testing.T, text string) []rbacv1.PolicyRule {
	t.Helper()
	out, err := kube.ParseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// granted are the rules of the roles bound to a service account of kube-system,
// of upstream's name or of ours.
func granted(p *policy.Policy, account string, ours bool) (out []rbacv1.PolicyRule) {
	want := func(name string) bool { return strings.HasPrefix(name, "berth:") == ours }
	mine := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == "kube-system" && s.Name == account
		})
	}
	for _, b := range p.ClusterRoleBindings {
		if !mine(b.Subjects) || !want(b.RoleRef.Name) {
			continue
		}
		for _, r := range p.ClusterRoles {
			if r.Name == b.RoleRef.Name {
				out = append(out, r.Rules...)
			}
		}
	}
	for _, b := range p.RoleBindings {
		if !mine(b.Subjects) || !want(b.RoleRef.Name) {
			continue
		}
		for _, r := range p.Roles {
			if r.Name == b.RoleRef.Name && r.Namespace == b.Namespace {
				out = append(out, r.Rules...)
			}
		}
	}
	return out
}

// Every right that a controller declares is granted to its account, and what we
// grant beside upstream's roles is declared and not in upstream's.
func TestControllersHaveTheRightsTheyDeclare(t *testing.T) {
	p, err := policy.Default()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string][]rbacv1.PolicyRule{}
	for _, c := range slices.Concat(workload.List(), nodes.List()) {
		if c.Account == "" || c.Watches == "" && c.Reads == "" {
			t.Errorf("%s declares no account, or nothing that it watches or reads", c.Name)
		}
		if c.Alias != "" && slices.ContainsFunc(workload.List(), func(o controller.Controller) bool { return o.Name == c.Alias }) {
			t.Errorf("%s has the alias %s, which is another's name", c.Name, c.Alias)
		}
		wants := rules(t, c.Reads+"\n"+c.Writes)
		declared[c.Account] = append(declared[c.Account], wants...)
		if ok, missing := validation.Covers(append(granted(p, c.Account, false), granted(p, c.Account, true)...), wants); !ok {
			t.Errorf("%s declares %v, which system:serviceaccount:kube-system:%s may not: add it to berthRoles", c.Name, missing, c.Account)
		}
	}
	for account, wants := range declared {
		upstream := granted(p, account, false)
		for _, extra := range granted(p, account, true) {
			for _, one := range validation.BreakdownRule(extra) {
				if ok, _ := validation.Covers(wants, []rbacv1.PolicyRule{one}); !ok {
					t.Errorf("%s is granted %v, which no controller of that account declares", account, one)
				}
				if ok, _ := validation.Covers(upstream, []rbacv1.PolicyRule{one}); ok {
					t.Errorf("%s is granted %v twice: upstream's role has it", account, one)
				}
			}
		}
	}
	for _, r := range p.ClusterRoles {
		if account, ours := strings.CutPrefix(r.Name, "berth:controller:"); ours && declared[account] == nil {
			t.Errorf("%s is no controller's", r.Name)
		}
	}
}
