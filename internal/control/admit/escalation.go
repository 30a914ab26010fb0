package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Escalation keeps users from granting what they do not hold: by writing a
// role (unless they hold the verb escalate on it) or by binding one (unless
// they hold bind).
const RBACEscalation = "RBACEscalation"

// Roles answers what users hold; the RBAC authorizer does.
type Roles interface {
	Rules(who user.Info, namespace string) ([]rbacv1.PolicyRule, error)
}

// wantsRoles is how a plugin asks for Roles.
type wantsRoles interface{ setRoles(Roles) }

type escalation struct {
	*admission.Handler
	client     kubernetes.Interface
	roles      Roles
	authorizer authorizer.UnconditionalAuthorizer
}

func newRBACEscalation(io.Reader) (admission.Interface, error) {
	return &escalation{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (e *escalation) SetExternalKubeClientSet(client kubernetes.Interface) { e.client = client }
func (e *escalation) setRoles(roles Roles)                                 { e.roles = roles }
func (e *escalation) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	e.authorizer = a
}

func (e *escalation) ValidateInitialization() error {
	if e.roles == nil || e.authorizer == nil || e.client == nil {
		return errors.New(RBACEscalation + " needs a client, an authorizer and roles")
	}
	return nil
}

// grant is what a write of an RBAC object would hand out.
type grant struct {
	verb  string // that allows it without holding the rules
	on    string // resource the verb is on
	name  string // object the verb is on
	rules []rbacv1.PolicyRule
}

func (e *escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != rbacv1.GroupName || a.GetSubresource() != "" || slices.Contains(a.GetUserInfo().GetGroups(),
		user.SystemPrivilegedGroup) {
		return nil
	}
	g, err := e.grantOf(ctx, a)
	if err != nil {
		return err
	}
	if g == nil || e.mayEscalate(ctx, a, g) {
		return nil
	}
	held, resolveErr := e.roles.Rules(a.GetUserInfo(), a.GetNamespace())
	covered, missing := validation.Covers(held, g.rules)
	if covered {
		return nil
	}
	return refusal(a, missing, resolveErr)
}

// grantOf returns what the request grants; nil when it grants nothing new.
//
// Every update counts but one that changes nothing or only what garbage
// collection and bookkeeping change: labels decide which ClusterRoles others
// sum up, so a label can grant as much as a rule.
func (e *escalation) grantOf(ctx context.Context, a admission.Attributes) (*grant, error) {
	if onlyBookkeeping(a.GetObject(), a.GetOldObject()) {
		return nil, nil
	}
	switch o := a.GetObject().(type) {
	case *rbacv1.ClusterRole:
		old, _ := a.GetOldObject().(*rbacv1.ClusterRole)
		rules := o.Rules
		// A sum may come to hold anything, and a role that is a sum no longer
		// keeps what it had gathered.
		if o.AggregationRule != nil || old != nil && old.AggregationRule != nil {
			rules = append(slices.Clone(rules),
				rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
				rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
		}
		return &grant{"escalate", "clusterroles", o.Name, rules}, nil
	case *rbacv1.Role:
		return &grant{"escalate", "roles", o.Name, o.Rules}, nil
	case *rbacv1.ClusterRoleBinding:
		return e.binding(ctx, a, o.RoleRef)
	case *rbacv1.RoleBinding:
		return e.binding(ctx, a, o.RoleRef)
	}
	return nil, nil
}

// onlyBookkeeping says whether an update leaves all but the fields of garbage
// collection and of the server's own bookkeeping as they were. A create never
// does.
func onlyBookkeeping(now, old runtime.Object) bool {
	if now == nil || old == nil {
		return false
	}
	now, old = now.DeepCopyObject(), old.DeepCopyObject()
	for _, object := range []runtime.Object{now, old} {
		m, err := meta.Accessor(object)
		if err != nil {
			return false
		}
		m.SetOwnerReferences(nil)
		m.SetFinalizers(nil)
		m.SetManagedFields(nil)
		m.SetResourceVersion("")
		m.SetGeneration(0)
		m.SetSelfLink("")
		object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return equality.Semantic.DeepEqual(now, old)
}

// binding returns the grant of a binding. It reads the role from the store and
// not from the RBAC index: the index may not have a rule yet that the role got
// a moment ago.
func (e *escalation) binding(ctx context.Context, a admission.Attributes, ref rbacv1.RoleRef) (*grant, error) {
	g := &grant{verb: "bind", on: "clusterroles", name: ref.Name}
	namespace := ""
	if ref.Kind == "Role" {
		g.on, namespace = "roles", a.GetNamespace()
	}
	if e.mayEscalate(ctx, a, g) {
		return nil, nil
	}
	var err error
	g.rules, err = e.storedRules(ctx, namespace, ref.Name)
	return g, err
}

// storedRules reads a role's rules; an empty namespace means a ClusterRole.
func (e *escalation) storedRules(ctx context.Context, namespace, name string) ([]rbacv1.PolicyRule, error) {
	if namespace == "" {
		role, err := e.client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	role, err := e.client.RbacV1().Roles(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return role.Rules, nil
}

// mayEscalate reports whether the user has the verb (bind or escalate) that allows a
// grant of rights that the user does not hold.
func (e *escalation) mayEscalate(ctx context.Context, a admission.Attributes, g *grant) bool {
	decision, _, _ := e.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: g.verb, APIGroup: rbacv1.GroupName, APIVersion: "v1",
		Resource: g.on, Name: g.name, Namespace: a.GetNamespace(), ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

func refusal(a admission.Attributes, missing []rbacv1.PolicyRule, resolveErr error) error {
	var rules []string
	for _, r := range missing {
		rules = append(rules, describeRule(r))
	}
	slices.Sort(rules)
	message := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		a.GetUserInfo().GetName(), a.GetUserInfo().GetGroups(), strings.Join(slices.Compact(rules), "\n"))
	if resolveErr != nil {
		message += fmt.Sprintf("; resolution errors: %v", resolveErr)
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New(message))
}

func describeRule(r rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"ResourceNames", r.ResourceNames}, {"NonResourceURLs", r.NonResourceURLs},
		{"Verbs", r.Verbs}} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
