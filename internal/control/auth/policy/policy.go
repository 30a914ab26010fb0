// Package policy holds the RBAC objects every cluster starts with and puts
// them in place: the roles that clients, add-ons and nodes expect by name.
package policy

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/auth/aggregate"
)

const (
	bootstrapLabel   = "kubernetes.io/bootstrapping"
	bootstrapValue   = "rbac-defaults"
	aggregatePrefix  = "rbac.authorization.k8s.io/aggregate-to-"
	controllerPrefix = "system:controller:"
	berthPrefix      = "berth:controller:"
)

// Policy is a set of RBAC objects. Its objects are the caller's to change.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// NodeRules returns the rules of system:node, which the Node authorizer
// applies on its own.
func NodeRules() []rbacv1.PolicyRule { return mustParse(nodeRules) }

// Default returns the objects every cluster starts with. Roles that are sums
// of others come with their rules filled in.
func Default() (*Policy, error) {
	p := &Policy{}
	for _, e := range userRoles {
		p.addCluster(e)
	}
	for _, e := range controllerRoles {
		e.subjects = []string{"account:kube-system/" + e.name}
		e.name = controllerPrefix + e.name
		p.addCluster(e)
	}
	for _, e := range berthRoles {
		e.subjects = []string{"account:kube-system/" + e.name}
		e.name = berthPrefix + e.name
		p.addCluster(e)
	}
	for _, e := range namespacedRoles {
		p.addNamespaced(e)
	}
	if err := aggregate.AggregateAll(p.ClusterRoles); err != nil {
		return nil, fmt.Errorf("building the default RBAC policy: %w", err)
	}
	return p, nil
}

func (p *Policy) addCluster(e entry) {
	role := &rbacv1.ClusterRole{ObjectMeta: defaults("", e.name), Rules: mustParse(e.rules)}
	if e.label != "" {
		role.Labels[aggregatePrefix+e.label] = "true"
	}
	if e.sumOf != "" {
		role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{aggregatePrefix + e.sumOf: "true"}},
		}}
	}
	p.ClusterRoles = append(p.ClusterRoles, role)
	if e.subjects != nil {
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: defaults("", e.name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: e.name},
			Subjects:   subjects(e.subjects),
		})
	}
}

func (p *Policy) addNamespaced(e namespacedEntry) {
	p.Roles = append(p.Roles, &rbacv1.Role{ObjectMeta: defaults(e.namespace, e.name), Rules: mustParse(e.rules)})
	if e.bindingName == "" {
		e.bindingName = e.name
	}
	p.RoleBindings = append(p.RoleBindings, &rbacv1.RoleBinding{
		ObjectMeta: defaults(e.namespace, e.bindingName),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: e.name},
		Subjects:   subjects(e.subjects),
	})
}

func defaults(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels:      map[string]string{bootstrapLabel: bootstrapValue},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

func subjects(texts []string) []rbacv1.Subject {
	var out []rbacv1.Subject
	for _, text := range texts {
		kind, name, _ := strings.Cut(text, ":")
		switch kind {
		case "user":
			out = append(out, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
		case "group":
			out = append(out, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name})
		case "account":
			namespace, name, _ := strings.Cut(name, "/")
			out = append(out, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
		default:
			panic(fmt.Sprintf("subject %q is none of user:, group:, account:", text))
		}
	}
	return out
}
