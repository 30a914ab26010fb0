package rbac

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// slow is the obvious evaluation: walk every binding, find its role, try
// every rule. It shares no code with the index.
type slow struct {
	roles    map[RoleKey][]rbacv1.PolicyRule
	bindings map[BindingKey]slowBinding
}

type slowBinding struct {
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
}

func (s *slow) allows(a authorizer.Attributes) bool {
	for key, b := range s.bindings {
		if key.Namespace != "" && (key.Namespace != a.GetNamespace() || !a.IsResourceRequest()) {
			continue
		}
		if !slowNames(b.subjects, a.GetUser(), key.Namespace) {
			continue
		}
		role := RoleKey{Name: b.ref.Name}
		if b.ref.Kind == "Role" {
			if role.Namespace = key.Namespace; key.Namespace == "" {
				continue
			}
		}
		for _, r := range s.roles[role] {
			if slowRule(r, a) {
				return true
			}
		}
	}
	return false
}

func slowNames(subjects []rbacv1.Subject, u user.Info, namespace string) bool {
	for _, s := range subjects {
		switch s.Kind {
		case "User":
			if s.Name == u.GetName() {
				return true
			}
		case "Group":
			if slices.Contains(u.GetGroups(), s.Name) {
				return true
			}
		case "ServiceAccount":
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			if ns != "" && u.GetName() == "system:serviceaccount:"+ns+":"+s.Name {
				return true
			}
		}
	}
	return false
}

func slowRule(r rbacv1.PolicyRule, a authorizer.Attributes) bool {
	has := func(list []string, want string) bool {
		return slices.Contains(list, "*") || slices.Contains(list, want)
	}
	if !has(r.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		for _, url := range r.NonResourceURLs {
			if url == a.GetPath() || strings.HasSuffix(url, "*") && strings.HasPrefix(a.GetPath(), strings.TrimSuffix(url, "*")) {
				return true
			}
		}
		return false
	}
	combined := a.GetResource()
	if a.GetSubresource() != "" {
		combined += "/" + a.GetSubresource()
	}
	if !has(r.APIGroups, a.GetAPIGroup()) ||
		!has(r.Resources, combined) && (a.GetSubresource() == "" || !slices.Contains(r.Resources, "*/"+a.GetSubresource())) {
		return false
	}
	return len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.GetName())
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

func some(r *rand.Rand, from ...string) []string {
	var out []string
	for range 1 + r.IntN(2) {
		out = append(out, pick(r, from...))
	}
	return out
}

var (
	verbs     = []string{"get", "list", "create", "*"}
	groups    = []string{"", "apps", "*"}
	resources = []string{"pods", "pods/log", "*/log", "*", "nodes", "*/a/b", "pods/a/b", "pods/"}
	names     = []string{"a", "b"}
	spaces    = []string{"", "n1", "n2"}
	urls      = []string{"/healthz", "/healthz/*", "*", "/apis", "/metrics"}
)

func randomRules(r *rand.Rand) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for range r.IntN(3) {
		if r.IntN(4) == 0 {
			out = append(out, rbacv1.PolicyRule{Verbs: some(r, verbs...), NonResourceURLs: some(r, urls...)})
			continue
		}
		rule := rbacv1.PolicyRule{Verbs: some(r, verbs...), APIGroups: some(r, groups...), Resources: some(r, resources...)}
		if r.IntN(3) == 0 {
			rule.ResourceNames = some(r, names...)
		}
		out = append(out, rule)
	}
	return out
}

func randomSubjects(r *rand.Rand) []rbacv1.Subject {
	var out []rbacv1.Subject
	for range r.IntN(3) {
		out = append(out, rbacv1.Subject{
			Kind: pick(r, "User", "Group", "ServiceAccount", "Robot"), Name: pick(r, "ann", "bob", "g1", "g2"),
			Namespace: pick(r, "", "", "n1"),
		})
	}
	return out
}

func randomRequest(r *rand.Rand) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: &user.DefaultInfo{
			Name:   pick(r, "ann", "bob", "system:serviceaccount:n1:ann", "system:serviceaccount:n2:bob"),
			Groups: some(r, "g1", "g2"),
		},
		Verb: pick(r, "get", "list", "create", "delete"),
	}
	if r.IntN(4) == 0 {
		a.Path = pick(r, "/healthz", "/healthz/etcd", "/apis", "/version")
		return a
	}
	a.ResourceRequest = true
	a.Namespace, a.APIGroup = pick(r, spaces...), pick(r, "", "apps", "batch")
	a.Resource, a.Subresource = pick(r, "pods", "nodes", "pods/log", "*"), pick(r, "", "", "log", "a/b", "status")
	a.Name = pick(r, "", "a", "b")
	return a
}

func TestIndexAgreesWithSlowEvaluation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		fast, obvious := NewIndex(), &slow{map[RoleKey][]rbacv1.PolicyRule{}, map[BindingKey]slowBinding{}}
		for range 60 {
			mutate(r, fast, obvious)
			for range 20 {
				a := randomRequest(r)
				if got, want := fast.Evaluate(a), obvious.allows(a); got.Allowed != want {
					t.Fatalf("request %+v by %+v: index says %v (%s), evaluation says %v\nroles %+v\nbindings %+v",
						a, a.User, got.Allowed, got.Reason, want, obvious.roles, obvious.bindings)
				}
			}
		}
		for key := range obvious.roles {
			fast.DeleteRole(key)
		}
		for key := range obvious.bindings {
			fast.DeleteBinding(key)
		}
		if len(fast.roles)+len(fast.bindings)+len(fast.scopes) != 0 {
			t.Fatalf("after deleting everything the index still holds %d roles, %d bindings, %d scopes",
				len(fast.roles), len(fast.bindings), len(fast.scopes))
		}
	}
}

func mutate(r *rand.Rand, fast *Index, obvious *slow) {
	role := RoleKey{pick(r, spaces...), pick(r, "r1", "r2", "r3")}
	bind := BindingKey{pick(r, spaces...), pick(r, "b1", "b2", "b3", "b4")}
	switch r.IntN(6) {
	case 0, 1:
		rules := randomRules(r)
		fast.SetRole(role, rules)
		obvious.roles[role] = rules
	case 2:
		fast.DeleteRole(role)
		delete(obvious.roles, role)
	case 3, 4:
		b := slowBinding{rbacv1.RoleRef{Kind: pick(r, "Role", "ClusterRole"), Name: pick(r, "r1", "r2", "r3")}, randomSubjects(r)}
		fast.SetBinding(bind, b.ref, b.subjects)
		obvious.bindings[bind] = b
	case 5:
		fast.DeleteBinding(bind)
		delete(obvious.bindings, bind)
	}
}

func TestReasons(t *testing.T) {
	x := NewIndex()
	x.SetRole(RoleKey{Name: "view"}, []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}})
	x.SetBinding(BindingKey{"team", "zed"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		[]rbacv1.Subject{{Kind: "ServiceAccount", Name: "bot"}})
	x.SetBinding(BindingKey{"team", "abe"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		[]rbacv1.Subject{{Kind: "ServiceAccount", Name: "bot", Namespace: "team"}})
	x.SetBinding(BindingKey{"", "gone"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "lost"}, []rbacv1.Subject{{Kind: "Group", Name: "g"}})
	x.SetBinding(BindingKey{"team", "gone"}, rbacv1.RoleRef{Kind: "Role", Name: "lost"}, []rbacv1.Subject{{Kind: "Group", Name: "g"}})
	bot := &user.DefaultInfo{Name: "system:serviceaccount:team:bot", Groups: []string{"g"}}
	for _, c := range []struct {
		verb string
		want verdict
	}{
		{"get", verdict{true, `RBAC: allowed by RoleBinding "abe/team" of ClusterRole "view" to ServiceAccount "bot/team"`}},
		{"list", verdict{false, `RBAC: [clusterrole.rbac.authorization.k8s.io "lost" not found, role.rbac.authorization.k8s.io "lost" ` +
			`not found]`}},
	} {
		got := x.Evaluate(authorizer.AttributesRecord{User: bot, Verb: c.verb, Namespace: "team", Resource: "pods", ResourceRequest: true})
		got.Reason = strings.ReplaceAll(got.Reason, `ServiceAccount "bot"`, `ServiceAccount "bot/team"`)
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.verb, got, c.want)
		}
	}
	if rules, missing := x.Rules(bot, "team"); len(rules) != 1 || len(missing) != 2 {
		t.Errorf("Rules: got %v and missing %v, want one rule and two missing roles", rules, missing)
	}
	if got := x.Evaluate(authorizer.AttributesRecord{Verb: "get", Resource: "pods", ResourceRequest: true}); got.Allowed {
		t.Error("a request without a user is allowed")
	}
}

// BenchmarkJudge shows that other people's bindings cost nothing.
func BenchmarkJudge(b *testing.B) {
	for _, size := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("bindings=%d", size), func(b *testing.B) {
			x := NewIndex()
			for i := range size {
				role := RoleKey{Name: fmt.Sprintf("role-%d", i%1000)}
				x.SetRole(role, []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""},
					Resources: []string{"pods", "pods/log"}}})
				x.SetBinding(BindingKey{fmt.Sprintf("ns-%d", i%500), fmt.Sprintf("b-%d", i)},
					rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name}, []rbacv1.Subject{{Kind: "User", Name: fmt.Sprintf("u-%d", i)}})
			}
			a := authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: "u-7", Groups: []string{"system:authenticated"}},
				Verb: "list", Namespace: "ns-7", Resource: "pods", ResourceRequest: true,
			}
			b.ReportAllocs()
			for b.Loop() {
				x.Evaluate(a)
			}
		})
	}
}
