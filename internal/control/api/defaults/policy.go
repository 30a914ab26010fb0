package defaults

import (
	v1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// addPolicy registers the kinds that say who may do what and who goes first.
func addPolicy(s *runtime.Scheme) {
	kind(s, func(b *rbac.RoleBinding) { binding(&b.RoleRef, b.Subjects) },
		func(l *rbac.RoleBindingList) []rbac.RoleBinding { return l.Items })
	kind(s, func(b *rbac.ClusterRoleBinding) { binding(&b.RoleRef, b.Subjects) },
		func(l *rbac.ClusterRoleBindingList) []rbac.ClusterRoleBinding { return l.Items })
	kind(s, func(c *scheduling.PriorityClass) { fill(&c.PreemptionPolicy, v1.PreemptLowerPriority) },
		func(l *scheduling.PriorityClassList) []scheduling.PriorityClass { return l.Items })
}

func binding(role *rbac.RoleRef, subjects []rbac.Subject) {
	zero(&role.APIGroup, rbac.GroupName)
	for i := range subjects {
		switch subjects[i].Kind {
		case rbac.UserKind, rbac.GroupKind:
			zero(&subjects[i].APIGroup, rbac.GroupName)
		}
	}
}
