package policy_test

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/berth-dev/berth/internal/control/api/addresses"
	"github.com/berth-dev/berth/internal/control/auth/aggregate"
	"github.com/berth-dev/berth/internal/control/auth/policy"
	"github.com/berth-dev/berth/internal/control/schedule"
	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/dns"
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

// everyone are the controllers of all rooms, and what else acts beside them.
func everyone() []controller.Controller {
	return slices.Concat(workload.List(), nodes.List(), []controller.Controller{
		schedule.Controller(schedule.Config{}), aggregate.Controller(), addresses.Controller(), dns.Publisher{}.Controller(),
	})
}

// granted are the rules of the roles bound to a user, of upstream's name or of
// ours.
func granted(p *policy.Policy, name string, ours bool) (out []rbacv1.PolicyRule) {
	want := func(name string) bool { return strings.HasPrefix(name, "berth:") == ours }
	mine := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.UserKind && s.Name == name ||
				s.Kind == rbacv1.ServiceAccountKind && serviceaccount.MakeUsername(s.Namespace, s.Name) == name
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
	declared, names := map[string][]rbacv1.PolicyRule{}, map[string]bool{}
	for _, c := range everyone() {
		if c.Account == "" == (c.User == "") || c.Watches == "" && c.Reads == "" {
			t.Errorf("%s declares no account or user, or both, or nothing that it watches or reads", c.Name)
		}
		for _, name := range []string{c.Name, c.Alias} {
			if names[name] {
				t.Errorf("%s is the name or alias of two", name)
			}
			names[name] = name != ""
		}
		wants, who := rules(t, c.Reads+"\n"+c.Writes), identity(c)
		declared[who] = append(declared[who], wants...)
		if ok, missing := validation.Covers(append(granted(p, who, false), granted(p, who, true)...), wants); !ok {
			t.Errorf("%s declares %v, which %s may not: add it to berthRoles", c.Name, missing, who)
		}
	}
	for who, wants := range declared {
		upstream := granted(p, who, false)
		for _, extra := range granted(p, who, true) {
			for _, one := range validation.BreakdownRule(extra) {
				if ok, _ := validation.Covers(wants, []rbacv1.PolicyRule{one}); !ok {
					t.Errorf("%s is granted %v, which no controller of that name declares", who, one)
				}
				if ok, _ := validation.Covers(upstream, []rbacv1.PolicyRule{one}); ok {
					t.Errorf("%s is granted %v twice: upstream's role has it", who, one)
				}
			}
		}
	}
	var ours []string
	for _, r := range p.ClusterRoles {
		ours = append(ours, r.Name)
	}
	for _, r := range p.Roles {
		ours = append(ours, r.Name)
	}
	for _, name := range ours {
		if account, ok := strings.CutPrefix(name, "berth:controller:"); ok &&
			declared["system:serviceaccount:kube-system:"+account] == nil {
			t.Errorf("%s is no controller's", name)
		}
	}
}

func identity(c controller.Controller) string {
	name, _ := c.Identity()
	return name
}
