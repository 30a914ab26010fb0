package rbac

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// RoleKey names a role; Namespace is empty for a ClusterRole.
type RoleKey struct{ Namespace, Name string }

func (k RoleKey) kind() string {
	if k.Namespace == "" {
		return "ClusterRole"
	}
	return "Role"
}

func (k RoleKey) String() string { return fmt.Sprintf("%s %q", k.kind(), k.Name) }

// BindingKey names a binding; Namespace is empty for a ClusterRoleBinding.
type BindingKey struct{ Namespace, Name string }

func (k BindingKey) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("ClusterRoleBinding %q", k.Name)
	}
	return fmt.Sprintf("RoleBinding %q", k.Name+"/"+k.Namespace)
}

// Index holds every role and binding arranged by who is named. It is plain
// data: not safe for concurrent use.
//
// A request is judged by looking up its user and each of its groups, so its
// cost follows the number of distinct roles those names hold, not the number
// of roles or bindings that exist, nor how often a name is bound to one role.
type Index struct {
	roles    map[RoleKey]*role
	bindings map[BindingKey]*binding
	// scopes holds the grants by namespace; "" holds cluster-wide ones.
	scopes map[string]scope
}

type scope map[subject][]*grant

// subject is a user or group name. Service accounts are users.
type subject struct {
	group bool
	name  string
}

// role stays in the index while it exists or while a binding names it, so
// that a binding may come before its role.
type role struct {
	key   RoleKey
	rules *ruleSet // nil: no such role at present
	users int      // bindings that refer to it
}

// grant is one role as held by one subject in one scope. Bindings is sorted
// and never empty; it exists to say why.
type grant struct {
	role     *role
	bindings []BindingKey
	subject  rbacv1.Subject
}

type binding struct {
	role     *role
	subjects []subject
}

// NewIndex returns an empty Index, which allows nothing.
func NewIndex() *Index {
	return &Index{roles: map[RoleKey]*role{}, bindings: map[BindingKey]*binding{}, scopes: map[string]scope{}}
}

// SetRole adds a role or replaces its rules. The slice is kept, not copied.
func (x *Index) SetRole(key RoleKey, rules []rbacv1.PolicyRule) {
	x.role(key).rules = compile(rules)
}

// DeleteRole forgets a role; bindings to it stay and grant nothing.
func (x *Index) DeleteRole(key RoleKey) {
	if r := x.roles[key]; r != nil {
		r.rules = nil
		x.release(r)
	}
}

func (x *Index) role(key RoleKey) *role {
	r := x.roles[key]
	if r == nil {
		r = &role{key: key}
		x.roles[key] = r
	}
	return r
}

func (x *Index) release(r *role) {
	if r.users == 0 && r.rules == nil {
		delete(x.roles, r.key)
	}
}

// SetBinding adds a binding or replaces it. A binding to a kind of role that
// does not exist grants nothing.
func (x *Index) SetBinding(key BindingKey, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	x.DeleteBinding(key)
	to, known := roleKeyOf(ref, key.Namespace)
	if !known {
		return
	}
	b := &binding{role: x.role(to)}
	b.role.users++
	x.bindings[key] = b
	in := x.scopes[key.Namespace]
	if in == nil {
		in = scope{}
		x.scopes[key.Namespace] = in
	}
	for _, s := range subjects {
		who, valid := subjectOf(s, key.Namespace)
		if !valid || slices.Contains(b.subjects, who) {
			continue
		}
		b.subjects = append(b.subjects, who)
		in.add(who, s, b.role, key)
	}
}

func roleKeyOf(ref rbacv1.RoleRef, namespace string) (RoleKey, bool) {
	switch {
	case ref.Kind == "ClusterRole":
		return RoleKey{Name: ref.Name}, true
	case ref.Kind == "Role" && namespace != "":
		return RoleKey{Namespace: namespace, Name: ref.Name}, true
	}
	return RoleKey{}, false
}

// subjectOf translates a binding's subject. A service account without a
// namespace belongs to the binding's own; cluster-wide there is none.
func subjectOf(s rbacv1.Subject, namespace string) (subject, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{name: s.Name}, true
	case rbacv1.GroupKind:
		return subject{group: true, name: s.Name}, true
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return subject{name: serviceaccount.MakeUsername(namespace, s.Name)}, namespace != ""
	}
	return subject{}, false
}

func (in scope) add(who subject, named rbacv1.Subject, to *role, by BindingKey) {
	for _, g := range in[who] {
		if g.role == to {
			at, _ := slices.BinarySearchFunc(g.bindings, by, compareBindings)
			g.bindings = slices.Insert(g.bindings, at, by)
			return
		}
	}
	in[who] = append(in[who], &grant{role: to, bindings: []BindingKey{by}, subject: named})
}

func compareBindings(a, b BindingKey) int { return strings.Compare(a.Name, b.Name) }

func (in scope) remove(who subject, to *role, by BindingKey) {
	grants := in[who]
	i := slices.IndexFunc(grants, func(g *grant) bool { return g.role == to })
	g := grants[i]
	if at, found := slices.BinarySearchFunc(g.bindings, by, compareBindings); found {
		g.bindings = slices.Delete(g.bindings, at, at+1)
	}
	if len(g.bindings) > 0 {
		return
	}
	if grants = slices.Delete(grants, i, i+1); len(grants) == 0 {
		delete(in, who)
		return
	}
	in[who] = grants
}

// DeleteBinding forgets a binding; one that is not there is no error.
func (x *Index) DeleteBinding(key BindingKey) {
	b := x.bindings[key]
	if b == nil {
		return
	}
	in := x.scopes[key.Namespace]
	for _, who := range b.subjects {
		in.remove(who, b.role, key)
	}
	if len(in) == 0 {
		delete(x.scopes, key.Namespace)
	}
	delete(x.bindings, key)
	b.role.users--
	x.release(b.role)
}

// verdict is the answer to one request. Reason names the binding, role and
// subject that allowed it; when nothing did, it names roles that the
// requester is bound to but that do not exist.
type verdict struct {
	Allowed bool
	Reason  string
}

// Evaluate says whether the request is allowed: first by cluster-wide grants,
// then, for a request in a namespace, by that namespace's.
func (x *Index) Evaluate(a authorizer.Attributes) verdict {
	t := targetOf(a)
	resource := a.IsResourceRequest()
	var missing []RoleKey
	var found *grant
	x.visit(a.GetUser(), a.GetNamespace(), func(g *grant) bool {
		switch {
		case g.role.rules == nil:
			missing = append(missing, g.role.key)
		case g.role.rules.allows(&t, resource) && (resource || g.bindings[0].Namespace == ""):
			found = g
		}
		return found == nil
	})
	if found == nil {
		return verdict{Reason: missingReason(missing)}
	}
	return verdict{Allowed: true, Reason: fmt.Sprintf("RBAC: allowed by %s of %s to %s %q",
		found.bindings[0], found.role.key, found.subject.Kind, subjectText(found.subject))}
}

func subjectText(s rbacv1.Subject) string {
	if s.Namespace != "" {
		return s.Name + "/" + s.Namespace
	}
	return s.Name
}

// visit calls each until it returns false.
func (x *Index) visit(who user.Info, namespace string, each func(*grant) bool) {
	if who == nil {
		return
	}
	if !x.scopes[""].visit(who, each) || namespace == "" {
		return
	}
	x.scopes[namespace].visit(who, each)
}

func (in scope) visit(who user.Info, each func(*grant) bool) bool {
	if len(in) == 0 {
		return true
	}
	for _, g := range in[subject{name: who.GetName()}] {
		if !each(g) {
			return false
		}
	}
	for _, name := range who.GetGroups() {
		for _, g := range in[subject{group: true, name: name}] {
			if !each(g) {
				return false
			}
		}
	}
	return true
}

func missingReason(missing []RoleKey) string {
	if len(missing) == 0 {
		return ""
	}
	var text []string
	for _, key := range missing {
		resource := "clusterrole"
		if key.Namespace != "" {
			resource = "role"
		}
		text = append(text, fmt.Sprintf("%s.rbac.authorization.k8s.io %q not found", resource, key.Name))
	}
	slices.Sort(text)
	text = slices.Compact(text)
	if len(text) == 1 {
		return "RBAC: " + text[0]
	}
	return "RBAC: [" + strings.Join(text, ", ") + "]"
}

// Rules returns every rule the user holds in the namespace, cluster-wide ones
// included, each role once, and the roles it is bound to that do not exist.
// The rules are shared with the index and must not be modified.
func (x *Index) Rules(who user.Info, namespace string) (rules []rbacv1.PolicyRule, missing []RoleKey) {
	seen := map[*role]bool{}
	x.visit(who, namespace, func(g *grant) bool {
		switch {
		case seen[g.role]:
			return true
		case g.role.rules == nil:
			missing = append(missing, g.role.key)
		default:
			rules = append(rules, g.role.rules.source...)
		}
		seen[g.role] = true
		return true
	})
	return rules, missing
}

// RoleRules returns a role's rules as written.
func (x *Index) RoleRules(key RoleKey) ([]rbacv1.PolicyRule, bool) {
	r := x.roles[key]
	if r == nil || r.rules == nil {
		return nil, false
	}
	return r.rules.source, true
}
