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

// cluster is what the oracle reads: plain lists, as they are stored.
type cluster struct {
	roles    map[RoleKey][]rbacv1.PolicyRule
	bindings map[BindingKey]rbacv1.RoleBinding
}

// allows is RBAC as the documentation tells it: go through all bindings, and
// through all rules of the role of each that someNames the caller.
func (w *cluster) allows(a authorizer.AttributesRecord) bool {
	for key, b := range w.bindings {
		if key.Namespace != "" && (!a.ResourceRequest || key.Namespace != a.Namespace) {
			continue
		}
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return someNames(s, key.Namespace, a.User) }) {
			continue
		}
		role := RoleKey{Name: b.RoleRef.Name}
		if b.RoleRef.Kind == "Role" {
			if key.Namespace == "" {
				continue
			}
			role.Namespace = key.Namespace
		}
		if slices.ContainsFunc(w.roles[role], func(r rbacv1.PolicyRule) bool { return ruleAllows(r, a) }) {
			return true
		}
	}
	return false
}

func someNames(s rbacv1.Subject, namespace string, who user.Info) bool {
	switch s.Kind {
	case "User":
		return who.GetName() == s.Name
	case "Group":
		return slices.Contains(who.GetGroups(), s.Name)
	case "ServiceAccount":
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return namespace != "" && who.GetName() == "system:serviceaccount:"+namespace+":"+s.Name
	}
	return false
}

func ruleAllows(r rbacv1.PolicyRule, a authorizer.AttributesRecord) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	if !has(r.Verbs, a.Verb) {
		return false
	}
	if !a.ResourceRequest {
		return slices.ContainsFunc(r.NonResourceURLs, func(url string) bool {
			return url == a.Path || strings.HasSuffix(url, "*") && strings.HasPrefix(a.Path, strings.TrimSuffix(url, "*"))
		})
	}
	full := a.Resource
	if a.Subresource != "" {
		full += "/" + a.Subresource
	}
	resource := slices.ContainsFunc(r.Resources, func(have string) bool {
		return have == "*" || have == full || a.Subresource != "" && have == "*/"+a.Subresource
	})
	return has(r.APIGroups, a.APIGroup) && resource && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name))
}

// TestAgainstOracle changes roles and bindings at random and compares each
// answer of the index with the oracle's.
func TestAgainstOracle(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	some := func(of ...string) []string {
		var out []string
		for _, s := range of {
			if r.IntN(3) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	w := &cluster{map[RoleKey][]rbacv1.PolicyRule{}, map[BindingKey]rbacv1.RoleBinding{}}
	x := NewIndex()
	rule := func() rbacv1.PolicyRule {
		if r.IntN(4) == 0 {
			return rbacv1.PolicyRule{Verbs: some("get", "post", "*"), NonResourceURLs: some("/healthz", "/healthz/*", "/metrics", "*",
				"/api*")}
		}
		return rbacv1.PolicyRule{Verbs: some("get", "create", "*"), APIGroups: some("", "apps", "*"),
			Resources: some("pods", "pods/exec", "deployments", "*", "*/exec", "*/status"), ResourceNames: some("a", "b")}
	}
	subject := func() rbacv1.Subject {
		return rbacv1.Subject{Kind: one("User", "Group", "ServiceAccount", "Robot"), Name: one("ann", "devs", "bot"),
			Namespace: one("", "", "x", "y")}
	}
	allowed := 0
	for step := range 20000 {
		switch r.IntN(10) {
		case 0:
			key := RoleKey{one("", "x", "y"), one("r1", "r2", "r3")}
			w.roles[key] = []rbacv1.PolicyRule{rule(), rule()}
			x.SetRole(key, w.roles[key])
		case 1:
			key := RoleKey{one("", "x", "y"), one("r1", "r2", "r3")}
			delete(w.roles, key)
			x.DeleteRole(key)
		case 2:
			key := BindingKey{one("", "x", "y"), one("b1", "b2", "b3", "b4")}
			b := rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{Kind: one("Role", "ClusterRole", "ClusterRole"), Name: one("r1", "r2", "r3")},
				Subjects: []rbacv1.Subject{subject(), subject(), subject()}}
			w.bindings[key] = b
			x.SetBinding(key, b.RoleRef, b.Subjects)
		case 3:
			key := BindingKey{one("", "x", "y"), one("b1", "b2", "b3", "b4")}
			delete(w.bindings, key)
			x.DeleteBinding(key)
		default:
			a := authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: one("ann", "eve", "system:serviceaccount:x:bot", "system:serviceaccount:y:bot"),
					Groups: some("devs", "ops")},
				Verb: one("get", "create", "post"), ResourceRequest: r.IntN(4) > 0, Namespace: one("", "x", "y"), APIGroup: one("", "apps"),
				Resource: one("pods", "deployments", "nodes"), Subresource: one("", "exec", "status"), Name: one("", "a", "c"),
				Path: one("/healthz", "/healthz/etcd", "/metrics", "/apis"),
			}
			if !a.ResourceRequest {
				a.Namespace, a.APIGroup, a.Resource, a.Subresource, a.Name = "", "", "", "", ""
			}
			got, want := x.Evaluate(a).Allowed, w.allows(a)
			if got != want {
				t.Fatalf("seed %d, step %d: the index says %v, the rules say %v: %s", seed, step, got, want,
					fmt.Sprintf("%+v by %+v", a, a.User))
			}
			if want {
				allowed++
			}
		}
	}
	if allowed < 100 {
		t.Errorf("seed %d: only %d requests were allowed: the test says little", seed, allowed)
	}
}
